"""vLLM's own manager and tiers behind Terrace's worker: vLLM's worker refuses the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from terrace_kv.vllm import TerraceOffloadingSpec
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager


class ReferenceSpec(TerraceOffloadingSpec):
    """Only the manager is vLLM's."""

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
            self._manager = TieringOffloadingManager(
                primary_tier=primary,
                secondary_tiers=tiers,
                tier_poll_interval_s=float(self.extra_config.get("tier_poll_interval_s", 0.001)),
            )
        return self._manager
