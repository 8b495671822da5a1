"""Terrace's manager with the constructors of vLLM's.

Host memory is as many slots of one page as the test asks for chunks: these tests look at bookkeeping alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import terrace_kv
from terrace_kv.vllm.manager import ANSWERS, TerraceOffloadingManager
from terrace_kv.vllm.tiers import VllmTier, peer_context

CHUNK_BYTES = 4096


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


class CPUPrimaryTierOffloadingManager:
    """What the tests give to TieringOffloadingManager: how large host memory is."""

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
        self.info = info
        self._region = mmap_region

    def get_kv_memoryview(self) -> memoryview:
        return self._region.create_kv_memoryview()


class TieringOffloadingManager(TerraceOffloadingManager):
    """In the place of vLLM's manager of tiers."""

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        secondary_tiers: Sequence[Any] = (),
        tier_poll_interval_s: float = 0.0,
    ) -> None:
        self.primary_tier = primary_tier
        self.secondary_tiers = list(secondary_tiers)
        node = _make_node(
            primary_tier.num_chunks,
            policy=primary_tier.cache_policy,
            events=primary_tier.enable_events,
            tiers=[(place, VllmTier(tier)) for place, tier in enumerate(secondary_tiers)],
            poll_interval_s=tier_poll_interval_s,
        )
        super().__init__(node, enable_events=primary_tier.enable_events, tiers=secondary_tiers)
        # The tests' helper asks whether a request was announced.
        self._req_state: set[str] = set()
        finished = self.on_request_finished

        def on_request_finished(req_context: Any) -> None:
            self._req_state.discard(req_context.req_id)
            finished(req_context)

        self.on_request_finished = on_request_finished

    def on_new_request(self, req_context: Any) -> Any:
        self._req_state.add(req_context.req_id)
        return super().on_new_request(req_context)
