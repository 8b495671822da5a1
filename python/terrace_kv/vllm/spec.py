"""vLLM's OffloadingSpec: makes the manager in the scheduler and the worker in each rank."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm import envs
from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadingMetricMetadata
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import TIER_LABEL
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from .. import _core
from ..errors import ConfigError, TerraceError
from ..node import Node
from .config import Configuration, Surroundings, is_python_tier, read_extra_config
from .manager import ANSWERS, TerraceOffloadingManager
from .metrics import terrace_definitions
from .tiers import VllmTier, peer_context, place_of, starting

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
    from vllm.v1.kv_offload.config import OffloadingConfig

logger = init_logger(__name__)

CREATOR_TIMEOUT_S = 3600.0
"""How long the first worker offers the memory: between it and the scheduler vLLM compiles and warms up."""
JOIN_TIMEOUT_S = 60.0

_REGION_NAME_MAX = 80


class TerraceOffloadingSpec(CPUOffloadingSpec):
    """Named in ``kv_connector_extra_config``; vLLM makes one in each worker and one in the scheduler's process."""

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        definitions = TieringOffloadingSpec.build_metric_definitions({**extra_config, "secondary_tiers": []})
        for place, tier_config, tier_cls in cls._python_tiers(extra_config):
            with starting(place, tier_config["type"]):
                definitions.update(tier_cls.build_metric_definitions(tier_config))
        definitions.update(terrace_definitions())
        return definitions

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        keys = dict.fromkeys(super().config_info_keys(extra_config))
        keys[TIER_LABEL] = None
        for place, tier_config, tier_cls in cls._python_tiers(extra_config):
            with starting(place, tier_config["type"]):
                keys.update(dict.fromkeys(tier_cls.config_info_keys(tier_config)))
        return tuple(keys)

    @staticmethod
    def _python_tiers(extra_config: Mapping[str, Any]) -> list[tuple[int, dict[str, Any], type]]:
        """Each with its place among all tiers."""
        tiers = extra_config.get("secondary_tiers")
        found = []
        for place, tier in enumerate(tiers if isinstance(tiers, list) else []):
            if not isinstance(tier, dict) or not is_python_tier(tier):
                continue
            # What there is none of is a fault, which is said with all others when the spec is made.
            with contextlib.suppress(Exception):
                found.append((place, tier, SecondaryTierFactory.get_tier_class(tier)))
        return found

    def __init__(self, config: OffloadingConfig) -> None:
        extra = dict(config.extra_config)
        # All faults at once, before vLLM's own code meets the first of them.
        self._configuration: Configuration = read_extra_config(
            extra,
            enable_kv_events=config.enable_kv_cache_events,
            surroundings=Surroundings(
                fs_directory=lambda root: self._fs_directory(root, config),
                find_class=SecondaryTierFactory.get_tier_class,
                data_parallel_index=config.parallel.data_parallel_index,
                side_channel=(envs.VLLM_P2P_SIDE_CHANNEL_HOST, envs.VLLM_P2P_SIDE_CHANNEL_PORT),
            ),
            logger=logger,
        )
        extra["cpu_bytes_to_use"] = _core.cpu_bytes_to_use(self._configuration.json)
        super().__init__(dataclasses.replace(config, extra_config=extra))
        if self.num_chunks < 1:
            raise ConfigError(
                f"cpu_bytes_to_use: {extra['cpu_bytes_to_use']} bytes hold no chunk: one of "
                f"{self.blocks_per_chunk} blocks takes {self.kv_bytes_per_chunk} bytes for all ranks"
            )
        self._memory: _core.HostMemory | None = None

    def _uses_shared_region(self) -> bool:
        return True

    def _fs_directory(self, root_dir: str, config: OffloadingConfig) -> str:
        parts = _MapperParts(config, config.cache.blocks_per_chunk)
        mapper = FileMapper.from_offloading_spec(
            root_dir=root_dir,
            offloading_spec=parts,
            blocks_per_file=config.cache.blocks_per_chunk,
            parallel_agnostic=True,
        )
        return f"{mapper.base_path}_r{mapper.rank}"

    @property
    def _copies(self) -> int:
        """How many ranks have a part of their own in each slot."""
        return 1 if self.replicated_layout else self.config.parallel.world_size

    def _identity(self) -> _core.CacheIdentity:
        config = self.config
        parallel = config.parallel
        layout = {
            "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
            "kv_cache_layout": config.kv_cache_layout,
            "tp": parallel.tp_size,
            "pp": parallel.pp_size,
            "pcp": parallel.pcp_size,
            "dcp": parallel.dcp_size,
            "blocks_per_chunk": self.blocks_per_chunk,
            "tokens_per_hash": self.tokens_per_hash,
            "replicated": self.replicated_layout,
        }
        digest = hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()[:32]
        return _core.CacheIdentity(
            model=config.model.name,
            revision=self._configuration.revision,
            dtype=str(config.model.dtype),
            layout=f"vllm-ranks-{digest}",
            layout_version=1,
            tokens_per_chunk=max(1, self.tokens_per_hash * self.blocks_per_chunk),
            chunk_bytes=self.cpu_page_size_per_worker * self._copies,
            shard_index=0,
            shard_count=1,
            # Equal seeds make equal keys.
            engine=f"vllm {'.'.join(vllm_version.split('.')[:2])} seed {os.environ.get('PYTHONHASHSEED', '')}",
        )

    def _share(self, rank: int | None, *, create: bool, timeout_s: float) -> _core.HostMemory:
        name = self.config.engine_id
        if len(name) > _REGION_NAME_MAX or not name.isascii():
            name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return _core.HostMemory.share(
            self._configuration.json,
            self._identity(),
            name,
            self._copies,
            self.config.parallel.world_size + 1,
            rank,
            timeout_s,
            create,
            instance="" if rank is None else _instance_of_worker(),
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Maps host memory: rank 0 makes it and waits for nobody, the others join it."""
        if self._worker is not None:
            return self._worker
        rank = self.config.parallel.rank
        own = rank if not self.replicated_layout or rank == 0 else None
        self._memory = self._share(
            own, create=rank == 0, timeout_s=CREATOR_TIMEOUT_S if rank == 0 else JOIN_TIMEOUT_S
        )
        self._worker = self._make_worker(0 if self.replicated_layout else rank, kv_caches)
        return self._worker

    def _make_worker(self, part: int, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Terrace's on the CPU; on a device vLLM's, unless Terrace's is asked for and can be had."""
        device = kv_caches.tensors[0].tensor.device.type if kv_caches.tensors else "cpu"
        if device == "cpu" or self._configuration.device_copies == "terrace":
            from .worker import TerraceOffloadingWorker

            try:
                return TerraceOffloadingWorker(
                    self._memory, part, kv_caches, self.blocks_per_chunk, self._configuration.copy_threads
                )
            except (TerraceError, ValueError) as error:
                if device == "cpu":
                    raise
                logger.warning("Terrace: device_copies: not on %s (%s); vLLM's worker copies", device, error)
        from .device_worker import make_device_worker

        return make_device_worker(self, self._memory, part, kv_caches)

    def get_manager(self) -> OffloadingManager:
        """Joins the workers' memory, starts the tiers and, for those that serve peers, the control thread."""
        if self._manager is not None:
            return self._manager
        try:
            memory = self._share(None, create=False, timeout_s=JOIN_TIMEOUT_S)
            memory.await_all()
        except TerraceError as error:
            raise TerraceError(
                f"the scheduler finds no host memory of this engine's workers (engine_id {self.config.engine_id}): "
                f"{error}",
                error.code,
            ) from error
        self._memory = memory
        view = memoryview(memory)
        tiers: list[VllmTier] = []
        info = [{**self.cpu_info.as_config_info(), TIER_LABEL: "0:primary"}]
        try:
            for one in self._configuration.python_tiers:
                with starting(one.place, one.config["type"]):
                    made = SecondaryTierFactory.create_secondary_tier(one.config, view, self)
                    tiers.append(VllmTier(made, one.place))
                    info.append({**made.config_info(), TIER_LABEL: f"{one.place + 1}:{made.tier_type}"})
            node = Node(
                self._configuration.node,
                self._identity(),
                memory=memory,
                tiers=[(tier.place, tier) for tier in tiers],
                answers=ANSWERS,
                make_context=peer_context,
            )
        except BaseException:
            for tier in reversed(tiers):
                try:
                    tier.shutdown()
                except Exception:
                    logger.exception("Terrace: stop %s (%s)", place_of(tier.place), tier.type)
            raise
        self._manager = TerraceOffloadingManager(
            node,
            enable_events=self.kv_events_config.enable_kv_cache_events,
            tiers=tiers,
            config_info=info,
            served_by_steps=self._configuration.served_by_steps,
        )
        logger.info(
            "Terrace %s: %d chunks of %d bytes in host memory, %d secondary tiers",
            _core.version,
            self.num_chunks,
            self.kv_bytes_per_chunk,
            len(self._configuration.node["secondary_tiers"]) + len(tiers),
        )
        return self._manager


def _instance_of_worker() -> str:
    """What vLLM calls this start of the engine, in each of its workers: engine_id may be another engine's, too."""
    config = get_current_vllm_config_or_none()
    return "" if config is None else config.instance_id


class _MapperParts:
    """What FileMapper reads of a spec."""

    def __init__(self, config: OffloadingConfig, blocks_per_chunk: int) -> None:
        self.config = config
        self.blocks_per_chunk = blocks_per_chunk
