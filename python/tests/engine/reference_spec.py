"""vLLM's own manager and tiers, to compare with: behind Terrace's memory and worker, since vLLM's worker refuses the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from terrace_kv.vllm import TerraceOffloadingSpec
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager


class ReferenceSpec(TerraceOffloadingSpec):
    def get_manager(self) -> Any:
        if self._manager is None:
            self._memory = memory = self._share(None, create=False, timeout_s=60)
            memory.await_all()
            view = memoryview(memory)
            primary = CPUPrimaryTierOffloadingManager(
                num_chunks=memory.slot_count,
                mmap_region=SimpleNamespace(create_kv_memoryview=lambda: view, cleanup=lambda: None),
                enable_events=self.kv_events_config.enable_kv_cache_events,
                info=self.cpu_info,
            )
            tiers = self.extra_config.get("secondary_tiers", [])
            self._manager = TieringOffloadingManager(
                primary_tier=primary,
                secondary_tiers=[SecondaryTierFactory.create_secondary_tier(dict(tier), view, self) for tier in tiers],
                tier_poll_interval_s=float(self.extra_config.get("tier_poll_interval_s", 0.001)),
            )
        return self._manager
