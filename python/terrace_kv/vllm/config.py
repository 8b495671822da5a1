"""vLLM's ``kv_connector_extra_config`` as a Terrace configuration."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping
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
_TERRACE_POLICIES = ("off", "drop", "throttle")
# Of chunks that wait for their decoder; vLLM's default is a minute.
_PARK_MS_MAX = 55_000
# Of a tier; what stands in quotes is the user's.
_PLACE = re.compile(r'"(?:[^"\\]|\\.)*"|secondary_tiers\[(\d+)\]')
_DEPTH_MAX = 16  # That the native part reads.
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
    def served_by_steps(self) -> bool:
        """Whether peers are answered in the engine's steps alone: there is no control thread."""
        return self.node.get("tier_poll_interval_s", 1) == 0 and any(
            tier["type"] == "peer" for tier in self.node.get("secondary_tiers", ())
        )

    @property
    def json(self) -> str:
        return json.dumps(self.node)


@dataclass(frozen=True)
class Surroundings:
    """What a configuration means beyond its own words.

    Attributes:
        fs_directory: the directory that vLLM's own fs tier would use for a root_dir.
        find_class: of a tier in Python, by its configuration; raises if there is none.
        data_parallel_index: of this engine among those of one configuration: each has ports of its own.
        side_channel: where vLLM's own p2p tier listens if its configuration does not say: host and port.
    """

    fs_directory: Callable[[str], str]
    find_class: Callable[[dict[str, Any]], type] = lambda tier: type(None)
    data_parallel_index: int = 0
    side_channel: tuple[str, int] = ("localhost", 5710)


def is_python_tier(tier: Mapping[str, Any]) -> bool:
    """Whether a class of Python makes it: one that its module_path names, or one that vLLM's factory knows."""
    return "module_path" in tier or tier.get("type") not in _NATIVE_TYPES


def _is_text(value: str) -> bool:
    """Not with half a character, which UTF-8 does not have."""
    return not any("\ud800" <= one <= "\udfff" for one in value)


def _path_of(path: str, key: Any) -> str:
    if isinstance(key, str) and re.fullmatch(r"\w+", key, re.ASCII):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key) if isinstance(key, str) else repr(key)}]"


class _Reader:
    def __init__(self, surroundings: Surroundings) -> None:
        self.out = Configuration()
        self.faults: list[str] = []
        self._surroundings = surroundings

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
            if isinstance(extra["revision"], str) and extra["revision"] and _is_text(extra["revision"]):
                self.out.revision = extra["revision"]
            else:
                self.faults.append("revision: must be text that is not empty")
        if "metrics_listen" in node:
            node["metrics_listen"] = self._listen(node["metrics_listen"])
        self._tiers(extra.get("secondary_tiers", []), self._detector(extra.get("backpressure"), "backpressure"))
        if self._can_be_json():
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
        return _PLACE.sub(lambda found: f"secondary_tiers[{self._places[int(found[1])]}]" if found[1] else found[0], line)

    def _can_be_json(self) -> bool:
        """Whether the native keys' values are such that JSON has. The others are faults, with their paths."""
        before = len(self.faults)
        for key, value in self.out.node.items():
            if key != "secondary_tiers":
                self._check_plain(key, value, _path_of("", key), 1)
        for place, tier in zip(self._places, self.out.node.get("secondary_tiers", ())):
            self._check_plain("", tier, f"secondary_tiers[{place}]", 2)
        return len(self.faults) == before

    def _check_plain(self, key: Any, value: Any, path: str, depth: int) -> None:
        if not isinstance(key, str) or not _is_text(key):
            self.faults.append(f"{path}: is not a known key")
        elif isinstance(value, str):
            if not _is_text(value):
                self.faults.append(f"{path}: holds half of a character, is {value!r}")
        elif isinstance(value, float) and not math.isfinite(value):
            self.faults.append(f"{path}: must be a value that JSON has, is {value}")
        elif isinstance(value, (dict, list, tuple)):
            if depth > _DEPTH_MAX:
                self.faults.append(f"{path}: is nested deeper than {_DEPTH_MAX} levels")
                return
            items = value.items() if isinstance(value, dict) else (("", one) for one in value)
            for number, (inner, one) in enumerate(items):
                at = _path_of(path, inner) if isinstance(value, dict) else f"{path}[{number}]"
                self._check_plain(inner, one, at, depth + 1)
        elif value is not None and not isinstance(value, (bool, int, float)):
            self.faults.append(f"{path}: must be a value that JSON has, is {value!r}")

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
            merged = self._merge_backpressure(tier, path, backpressure)
            if is_python_tier(tier):
                self._check_class(tier, path)
                if isinstance(merged, dict):
                    tier["backpressure"] = merged
                elif merged is not None and merged != backpressure:
                    self.faults.append(f"{path}.backpressure: must be an object for a tier in Python, is {merged!r}")
                self.out.python_tiers.append(PythonTier(place, tier))
                continue
            if isinstance(merged, dict):
                self._translate_backpressure(tier, path, merged)
            elif merged is not None:
                tier["backpressure"] = merged
            if tier["type"] == "fs":
                tier = self._fs(tier, path)
            elif tier["type"] == "p2p":
                tier = self._p2p(tier, path)
            if tier["type"] == "peer":
                self._own_ports(tier)
            self._places.append(place)
            native.append(tier)
        self.out.node["secondary_tiers"] = native

    def _check_class(self, tier: dict[str, Any], path: str) -> None:
        try:
            self._surroundings.find_class(tier)
        except Exception as error:  # Whatever its module does when it is imported.
            native = ", ".join(sorted(_NATIVE_TYPES))
            self.faults.append(
                f"{path}.type: {tier['type']!r} is none of Terrace's ({native}) and no class that can be had: {error}"
            )

    def _detector(self, value: Any, path: str) -> dict[str, Any] | str | None:
        """vLLM's object, or the word that a native tier has."""
        if value is None or isinstance(value, dict) or (isinstance(value, str) and value in _TERRACE_POLICIES):
            return value
        words = ", ".join(_TERRACE_POLICIES)
        self.faults.append(f"{path}: must be an object, as vLLM has it, or one of {words}; is {value!r}")
        return None

    def _merge_backpressure(self, tier: dict[str, Any], path: str, default: dict[str, Any] | str | None) -> Any:
        """vLLM's rule: field by field, the tier's over the default's."""
        own = self._detector(tier.pop("backpressure", None), f"{path}.backpressure")
        if isinstance(own, dict) and isinstance(default, dict):
            return {**default, **own}
        return default if own is None else own

    def _translate_backpressure(self, tier: dict[str, Any], path: str, detector: dict[str, Any]) -> None:
        policy = detector.get("policy_cls")
        name = policy.rpartition(".")[2] if isinstance(policy, str) else policy
        if not (name is None or isinstance(name, str)) or name not in _DETECTOR_POLICIES:
            self.faults.append(f"{path}.backpressure.policy_cls: {policy!r} is not one that native tiers have")
            return
        tier["backpressure"] = _DETECTOR_POLICIES[name]
        if "high_water_s" in detector:
            tier["backpressure_ms_per_mib"] = self._milliseconds(
                detector["high_water_s"], f"{path}.backpressure.high_water_s"
            )
        for key in sorted(map(str, set(detector) - {"backpressure_cls", "policy_cls", "high_water_s"})):
            self._meaningless(f"{path}.backpressure.{key}")

    def _milliseconds(self, seconds: Any, path: str) -> int:
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e9:
            return max(1, round(seconds * 1e3))
        self.faults.append(f"{path}: must be a number of seconds, is {seconds!r}")
        return 1

    def _meaningless(self, path: str) -> None:
        self.out.warnings.append(f"{path} has no meaning for Terrace and is ignored")

    def _fs(self, tier: dict[str, Any], path: str) -> dict[str, Any]:
        """Reads and writes the directory of vLLM's own fs tier as it stands."""
        out = {**tier, "type": "file", "layout": "vllm"}
        if tier.get("layout", "vllm") != "vllm":
            self.faults.append(f'{path}.layout: type "fs" is vLLM\'s directory; for another layout use type "file"')
        for key in ("enable_kv_events", "locality"):
            if out.pop(key, None) not in (None, False):
                self._meaningless(f"{path}.{key}")
        out.setdefault("n_read_threads", 16)
        out.setdefault("n_write_threads", 16)
        root = tier.get("root_dir")
        if isinstance(root, str) and root:
            out["root_dir"] = self._surroundings.fs_directory(root)
        return out

    def _p2p(self, tier: dict[str, Any], path: str) -> dict[str, Any]:
        out = {**tier, "type": "peer"}
        for key in ("backends", "num_threads"):
            if key in out:
                del out[key]
                self._meaningless(f"{path}.{key}")
        host, port = self._surroundings.side_channel
        if host != "localhost":
            out.setdefault("host", host)
        out.setdefault("port", port)
        if "unbound_store_timeout_s" in out:
            park = self._milliseconds(out.pop("unbound_store_timeout_s"), f"{path}.unbound_store_timeout_s")
            if park > _PARK_MS_MAX:
                self.out.warnings.append(
                    f"{path}.unbound_store_timeout_s: chunks wait {_PARK_MS_MAX // 1000} s for their decoder at most"
                )
            out["park_timeout_ms"] = min(park, _PARK_MS_MAX)
        return out

    def _own_ports(self, tier: dict[str, Any]) -> None:
        """As vLLM's p2p tier has it: the configuration's port is that of the first engine."""
        index = self._surroundings.data_parallel_index
        if index == 0:
            return
        tier.setdefault("port", 5710)
        for key in ("port", "data_port"):
            port = tier.get(key)
            if isinstance(port, int) and not isinstance(port, bool) and port > 0:
                tier[key] = port + index

    def _listen(self, value: Any) -> Any:
        """The same for host:port. What is none is left to the check of all keys."""
        host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not colon or not port.isdecimal() or int(port) == 0:
            return value
        return f"{host}:{int(port) + self._surroundings.data_parallel_index}"


def read_extra_config(
    extra: Mapping[str, Any],
    *,
    enable_kv_events: bool,
    surroundings: Surroundings,
    logger: logging.Logger | None = None,
) -> Configuration:
    """Checks and translates an extra config. It is not changed.

    Raises:
        ConfigError: every fault, a line each.
    """
    out = _Reader(surroundings).read(extra, enable_kv_events)
    for warning in out.warnings if logger is not None else ():
        logger.warning("Terrace: kv_connector_extra_config: %s", warning)
    return out
