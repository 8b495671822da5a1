"""Terrace's manager with the constructors of vLLM's.

Host memory is as many slots of one page as the test asks for chunks: these tests look at bookkeeping alone. Where they
read a private field whose meaning Terrace shows elsewhere, the field is made of that here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import terrace_kv
from terrace_kv.vllm.manager import ANSWERS, TerraceOffloadingManager
from terrace_kv.vllm.tiers import VllmTier, peer_context
from vllm.v1.kv_offload.base import LookupResult, ReqContext
from vllm.v1.kv_offload.tiering.base import TIER_LABEL
from vllm.v1.kv_offload.tiering.manager import DEFAULT_TIER_POLL_INTERVAL_S
from vllm.v1.metrics.cache_hit_source import CacheHitSource

CHUNK_BYTES = 4096
_HOST_ALONE = ReqContext(req_id="who asks host memory alone")


def _make_node(
    num_chunks: int,
    *,
    policy: str = "lru",
    store_threshold: int = 0,
    max_tracker_size: int = 64_000,
    events: bool = False,
    tiers: Sequence[tuple[int, Any]] = (),
    poll_interval_s: float = 0.0,
) -> terrace_kv.Node:
    identity = terrace_kv.CacheIdentity(
        model="test",
        revision="1",
        dtype="int8",
        layout="none",
        layout_version=1,
        tokens_per_chunk=16,
        chunk_bytes=CHUNK_BYTES,
        shard_index=0,
        shard_count=1,
        engine="tests",
    )
    config = {
        "cpu_bytes_to_use": num_chunks * CHUNK_BYTES,
        "prefault_threads": 0,
        "eviction_policy": policy,
        "store_threshold": store_threshold,
        "max_tracker_size": max_tracker_size,
        "enable_kv_events": events,
        "tier_poll_interval_s": max(0.0, poll_interval_s),
        # Some tests promote or cascade all of five slots at once.
        "promoting_slots_percent": 100,
        "cascading_slots_percent": 100,
    }
    return terrace_kv.Node(config, identity, tiers=tiers, answers=ANSWERS, make_context=peer_context)


class CPUOffloadingManager(TerraceOffloadingManager):
    """In the place of vLLM's manager of host memory alone."""

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 0,
        max_tracker_size: int = 64_000,
        info: Any = None,
    ) -> None:
        node = _make_node(
            num_chunks,
            policy=cache_policy,
            store_threshold=store_threshold,
            max_tracker_size=max_tracker_size,
            events=enable_events,
        )
        super().__init__(
            node, enable_events=enable_events, config_info=[info.as_config_info() if info is not None else {}]
        )

    @property
    def stores_skipped_in_current_batch(self) -> int:
        return self._core.stats()["skipped_store_chunks"]


class CPUPrimaryTierOffloadingManager:
    """What the tests give to TieringOffloadingManager: how large host memory is; then, host memory alone."""

    def __init__(
        self,
        num_chunks: int,
        mmap_region: Any = None,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        info: Any = None,
    ) -> None:
        self.num_chunks = num_chunks
        self.cache_policy = cache_policy
        self.enable_events = enable_events
        self._info = info
        self._region = mmap_region
        self.core: Any = None

    def get_kv_memoryview(self) -> memoryview:
        return self._region.create_kv_memoryview()

    def config_info(self) -> Sequence[Any]:
        return [self._info.as_config_info() if self._info is not None else {}]

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        return self.core.lookup(key, _HOST_ALONE)

    def on_request_finished(self, req_context: Any) -> None:
        """Is told when the manager is."""


class _Request:
    """A request whose end the tiers have not heard of."""

    request_level_tiers: set[int] | None = None


class _WatchedTier(VllmTier):
    """Keeps the jobs that are under way and the requests."""

    def __init__(self, tier: Any, place: int, jobs: dict[int, Any], requests: dict[str, _Request]) -> None:
        super().__init__(tier, place)
        self._jobs = jobs
        self._requests = requests

    def submit(self, job_id: int, keys: list[bytes], slots: list[int], is_load: bool, request: Any) -> None:
        self._jobs[job_id] = keys
        super().submit(job_id, keys, slots, is_load, request)

    def take_finished(self) -> list[tuple]:
        results = super().take_finished()
        for result in results:
            self._jobs.pop(result[0], None)
        return results

    def on_new_request(self, request: Any) -> bool:
        whole = super().on_new_request(request)
        if request is not _HOST_ALONE:
            known = self._requests.setdefault(request.req_id, _Request())
            if whole:
                known.request_level_tiers = (known.request_level_tiers or set()) | {self.place}
        return whole

    def on_request_finished(self, request: Any) -> None:
        self._requests.pop(request.req_id, None)
        super().on_request_finished(request)


class TieringOffloadingManager:
    """In the place of vLLM's manager of tiers. It is made when it is used first, since some tests change its tiers
    before, or at once if some tier is to be served between steps."""

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        secondary_tiers: Sequence[Any] | None = None,
        tier_poll_interval_s: float = DEFAULT_TIER_POLL_INTERVAL_S,
    ) -> None:
        self._args = (primary_tier, secondary_tiers or [], tier_poll_interval_s)
        if any(tier.tolerates_off_thread_polling for tier in self._args[1]):
            self._make()

    def _make(self) -> None:
        self._made = _TieringOffloadingManager(*self._args)

    def __getattr__(self, name: str) -> Any:
        if "_made" not in self.__dict__:
            self._make()
        return getattr(self._made, name)


class _TieringOffloadingManager(TerraceOffloadingManager):

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        secondary_tiers: Sequence[Any],
        tier_poll_interval_s: float,
    ) -> None:
        self.primary_tier = primary_tier
        self.secondary_tiers = list(secondary_tiers)
        self._jobs: dict[int, Any] = {}
        self._req_state: dict[str, _Request] = {}
        tiers = [_WatchedTier(tier, place, self._jobs, self._req_state) for place, tier in enumerate(secondary_tiers)]
        node = _make_node(
            primary_tier.num_chunks,
            policy=primary_tier.cache_policy,
            events=primary_tier.enable_events,
            tiers=[(tier.place, tier) for tier in tiers],
            poll_interval_s=tier_poll_interval_s,
        )
        info = [{**one, TIER_LABEL: "0:primary"} for one in primary_tier.config_info()]
        for place, tier in enumerate(secondary_tiers, 1):
            info.append({**tier.config_info(), TIER_LABEL: f"{place}:{tier.tier_type}"})
        super().__init__(
            node, enable_events=primary_tier.enable_events, tiers=tiers, config_info=info
        )
        primary_tier.core = self._core
        self._core.on_new_request(_HOST_ALONE, 0)
        self._asked: dict[str, tuple[Any, set[bytes]]] = {}
        lookup, finished = self.lookup, self.on_request_finished

        def note_lookup(key: bytes, req_context: Any) -> LookupResult:
            self._asked.setdefault(req_context.req_id, (req_context, set()))[1].add(key)
            return lookup(key, req_context)

        def on_request_finished(req_context: Any) -> None:
            primary_tier.on_request_finished(req_context)
            finished(req_context)

        self.lookup = note_lookup
        self.on_request_finished = on_request_finished

    @property
    def _request_load_sources(self) -> dict[str, dict[bytes, CacheHitSource]]:
        sources = {
            name: {key: self.get_load_source(key, context) for key in keys}
            for name, (context, keys) in self._asked.items()
        }
        return {
            name: {key: source for key, source in by_key.items() if source is not CacheHitSource.HOST}
            for name, by_key in sources.items()
        }
