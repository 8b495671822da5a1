"""vLLM's ``kv_connector_extra_config`` as a Terrace configuration."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..node import check_config

# Read by vLLM's connector, or by the spec itself (spec.py).
_CONNECTOR_KEYS = frozenset(
    {
        "spec_name",
        "spec_module_path",
        "block_size",
        "blocks_per_chunk",
        "offload_prompt_only",
        "self_describing_kv_events",
        "sync_load_budget_bytes",
        "backpressure",
        "copy_threads",
        "device_copies",
        "revision",
    }
)
# What the engine decides here, and would contradict.
_DERIVED_KEYS = {
    "tokens_per_chunk": "follows from block_size or blocks_per_chunk; take it out",
    "enable_kv_events": "follows from vLLM's kv_events_config; take it out",
    "cache_policy_module_path": "means Python code, which the host tier does not run; eviction_policy is one of its own",
}
_PLACE = re.compile(r"secondary_tiers\[(\d+)\]")
_NATIVE_TYPES = frozenset({"memory", "file", "peer", "plugin", "fs", "p2p"})
_DETECTOR_POLICIES = {None: "drop", "DropStorePolicy": "drop", "ThrottledDropPolicy": "throttle"}


@dataclass
class PythonTier:
    """A tier whose class is Python's: where it stands among all, and its own configuration."""

    place: int
    config: dict[str, Any]


@dataclass
class Configuration:
    """What an extra config says.

    Attributes:
        node: of the native node, without the tiers in Python.
        python_tiers: in order of their places.
        warnings: keys that were written for vLLM's own and have no meaning here, a sentence each.
    """

    node: dict[str, Any] = field(default_factory=dict)
    python_tiers: list[PythonTier] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    copy_threads: int = 2
    device_copies: str = "vllm"
    revision: str = "unspecified"

    @property
    def json(self) -> str:
        return json.dumps(self.node)


def is_python_tier(tier: Mapping[str, Any]) -> bool:
    """Whether a class of Python makes it: one that its module_path names, or one that vLLM's factory knows."""
    return "module_path" in tier or tier.get("type") not in _NATIVE_TYPES


class _Reader:
    def __init__(self, fs_directory) -> None:
        self.out = Configuration()
        self.faults: list[str] = []
        self._fs_directory = fs_directory

    def read(self, extra: Mapping[str, Any], enable_kv_events: bool) -> Configuration:
        node = self.out.node
        for key, value in extra.items():
            if key == "canonical_layout":
                if value:
                    self.faults.append("canonical_layout: is not supported; take it out (chunks are laid out by rank)")
            elif key in _DERIVED_KEYS:
                self.faults.append(f"{key}: {_DERIVED_KEYS[key]}")
            elif key not in _CONNECTOR_KEYS and key != "secondary_tiers":
                node[key] = value
        node["enable_kv_events"] = enable_kv_events
        if "offload_prompt_only" in extra:
            node["offload_prompt_only"] = extra["offload_prompt_only"]
        self.out.copy_threads = self._number(extra, "copy_threads", 2, 1, 64)
        self.out.device_copies = self._choice(extra, "device_copies", ("vllm", "terrace"))
        if "revision" in extra:
            if isinstance(extra["revision"], str) and extra["revision"]:
                self.out.revision = extra["revision"]
            else:
                self.faults.append("revision: must be text that is not empty")
        self._tiers(extra.get("secondary_tiers", []), extra.get("backpressure"))
        # The native keys' faults count those of native tiers by their places among these: with the places of all.
        try:
            check_config(node)
        except ConfigError as error:
            self.faults.extend(self._with_places(line) for line in str(error).splitlines())
        if self.faults:
            raise ConfigError("kv_connector_extra_config:\n" + "\n".join(self.faults))
        return self.out

    def _number(self, extra: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
        value = extra.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.faults.append(f"{key}: must be a number from {low} to {high}, is {value!r}")
        return default

    def _choice(self, extra: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
        """The first one is the default."""
        value = extra.get(key, choices[0])
        if value in choices:
            return value
        self.faults.append(f"{key}: must be one of {', '.join(choices)}, is {value!r}")
        return choices[0]

    def _with_places(self, line: str) -> str:
        return _PLACE.sub(lambda found: f"secondary_tiers[{self._places[int(found[1])]}]", line)

    def _tiers(self, tiers: Any, backpressure: Any) -> None:
        self._places: list[int] = []
        native: list[dict[str, Any]] = []
        if not isinstance(tiers, list):
            self.faults.append("secondary_tiers: must be a list of tiers")
            return
        for place, tier in enumerate(tiers):
            path = f"secondary_tiers[{place}]"
            if not isinstance(tier, dict) or not isinstance(tier.get("type"), str):
                self.faults.append(f'{path}: must be an object with a "type"')
                continue
            tier = dict(tier)
            merged = self._merge_backpressure(tier, backpressure)
            if is_python_tier(tier):
                # vLLM's factory knows its own types, and says what is wrong with the rest.
                if merged is not None:
                    tier["backpressure"] = merged
                self.out.python_tiers.append(PythonTier(place, tier))
                continue
            if isinstance(merged, dict):
                self._translate_backpressure(tier, path, merged)
            if tier["type"] == "fs":
                tier = self._fs(tier, path)
            elif tier["type"] == "p2p":
                tier = self._p2p(tier, path)
            self._places.append(place)
            native.append(tier)
        self.out.node["secondary_tiers"] = native

    @staticmethod
    def _merge_backpressure(tier: dict[str, Any], default: Any) -> Any:
        """vLLM's rule: field by field, the tier's over the default's."""
        own = tier.get("backpressure")
        if isinstance(own, str):
            return own
        if own is None and default is None:
            return None
        return {**(default or {}), **(own or {})}

    def _translate_backpressure(self, tier: dict[str, Any], path: str, detector: dict[str, Any]) -> None:
        policy = detector.get("policy_cls")
        policy = policy.rpartition(".")[2] if isinstance(policy, str) else policy
        if policy not in _DETECTOR_POLICIES:
            self.faults.append(f"{path}.backpressure.policy_cls: {policy!r} is not one that native tiers have")
            return
        tier["backpressure"] = _DETECTOR_POLICIES[policy]
        if "high_water_s" in detector:
            tier["backpressure_ms_per_mib"] = max(1, round(float(detector["high_water_s"]) * 1e3))
        for key in sorted(set(detector) - {"backpressure_cls", "policy_cls", "high_water_s"}):
            self._meaningless(f"{path}.backpressure.{key}")

    def _meaningless(self, path: str) -> None:
        self.out.warnings.append(f"{path} has no meaning for Terrace and is ignored")

    def _fs(self, tier: dict[str, Any], path: str) -> dict[str, Any]:
        """Reads and writes the directory of vLLM's own fs tier as it stands."""
        out = {**tier, "type": "file", "layout": "vllm"}
        for key in ("enable_kv_events", "locality"):
            if out.pop(key, None) not in (None, False):
                self._meaningless(f"{path}.{key}")
        out.setdefault("n_read_threads", 16)
        out.setdefault("n_write_threads", 16)
        root = tier.get("root_dir")
        if isinstance(root, str) and root:
            out["root_dir"] = self._fs_directory(root)
        return out

    def _p2p(self, tier: dict[str, Any], path: str) -> dict[str, Any]:
        out = {**tier, "type": "peer"}
        for key in ("backends", "num_threads"):
            if key in out:
                del out[key]
                self._meaningless(f"{path}.{key}")
        if "unbound_store_timeout_s" in out:
            out["park_timeout_ms"] = max(1, round(float(out.pop("unbound_store_timeout_s")) * 1e3))
        return out


def read_extra_config(
    extra: Mapping[str, Any], *, enable_kv_events: bool, fs_directory, logger: logging.Logger | None = None
) -> Configuration:
    """Checks and translates an extra config. It is not changed.

    Args:
        fs_directory: the directory that vLLM's own fs tier would use for a root_dir.

    Raises:
        ConfigError: every fault, a line each.
    """
    out = _Reader(fs_directory).read(extra, enable_kv_events)
    for warning in out.warnings if logger is not None else ():
        logger.warning("Terrace: kv_connector_extra_config: %s", warning)
    return out
