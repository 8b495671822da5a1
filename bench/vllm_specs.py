"""Specs for the benchmarks with real vLLMs."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

from terrace_kv.vllm import TerraceOffloadingSpec
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager


def time_lookups(manager: Any) -> Any:
    """If TERRACE_TIME_LOOKUPS is set, prints how long each request was told to ask again before a tier knew."""
    if not os.environ.get("TERRACE_TIME_LOOKUPS"):
        return manager
    lookup = manager.lookup
    since: dict[str, float | None] = {}

    def timed(key: bytes, req_context: Any) -> Any:
        began = since.setdefault(req_context.req_id, time.perf_counter())
        answer = lookup(key, req_context)
        if answer is not LookupResult.RETRY and began is not None:
            since[req_context.req_id] = None
            waited = time.perf_counter() - began
            print("@@ " + json.dumps({"step": "lookup", "s": waited, "answer": answer.name}), flush=True)
        return answer

    manager.lookup = timed
    return manager


class TimedTerraceSpec(TerraceOffloadingSpec):
    def get_manager(self) -> Any:
        if self._manager is None:
            time_lookups(super().get_manager())
        return self._manager


class ReferenceSpec(TerraceOffloadingSpec):
    """vLLM's own manager and tiers behind Terrace's worker and memory: vLLM's worker refuses the CPU."""

    def get_manager(self) -> Any:
        if self._manager is None:
            memory = self._share(None, create=False, timeout_s=60)
            memory.await_all()
            self._memory = memory
            view = memoryview(memory)
            primary = CPUPrimaryTierOffloadingManager(
                num_chunks=memory.slot_count,
                mmap_region=SimpleNamespace(create_kv_memoryview=lambda: view, cleanup=lambda: None),
                info=self.cpu_info,
            )
            tiers = [
                SecondaryTierFactory.create_secondary_tier(dict(tier), view, self)
                for tier in self.extra_config.get("secondary_tiers", [])
            ]
            self._manager = time_lookups(
                TieringOffloadingManager(
                    primary_tier=primary,
                    secondary_tiers=tiers,
                    tier_poll_interval_s=float(self.extra_config.get("tier_poll_interval_s", 0.001)),
                )
            )
        return self._manager
