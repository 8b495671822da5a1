"""On a GPU, unless ``device_copies`` is ``terrace``: vLLM's own worker over Terrace's host memory.

vLLM's CPUOffloadingWorker copies on streams of its own after the compute stream's event; it is given the rank's part of
the slots in place of its own region.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.host_register import host_unregister

from .. import _core

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker

    from .spec import TerraceOffloadingSpec


class _Region:
    """As much of vLLM's SharedOffloadRegion as its worker uses, over host memory."""

    def __init__(self, memory: _core.HostMemory, rank: int, part_bytes: int) -> None:
        self.rank = rank
        self.page_size = mmap.PAGESIZE
        self.cpu_page_size = part_bytes
        self.total_size_bytes = memory.slot_count * memory.stride_bytes
        self.is_pinned = False
        self.pinned_addresses: list[int] = []
        self._row_stride = memory.stride_bytes
        self._memory: _core.HostMemory | None = memory
        self._base = torch.from_numpy(np.asarray(memoryview(memory)).reshape(-1))
        self._at = rank * part_bytes
        self._end = self._at + part_bytes

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """The next tensor's part of each slot: (slots, bytes)."""
        if self._at + tensor_page_size > self._end:
            raise ValueError(f"the KV cache has more bytes a chunk than the {self.cpu_page_size} of a rank's part")
        rows = self.total_size_bytes // self._row_stride
        view = torch.as_strided(self._base, (rows, tensor_page_size), (self._row_stride, 1), self._at)
        self._at += tensor_page_size
        return view

    def iter_worker_slot_ranges(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of the rank's part of each slot, in whole pages."""
        first = self.rank * self.cpu_page_size
        for row in range(self.total_size_bytes // self._row_stride):
            begin = (row * self._row_stride + first) // self.page_size * self.page_size
            end = -(-(row * self._row_stride + first + self.cpu_page_size) // self.page_size) * self.page_size
            yield begin, end - begin

    def cleanup(self) -> None:
        for address in reversed(self.pinned_addresses):
            host_unregister(address)
        self.pinned_addresses.clear()
        self._base = None
        self._memory = None


def make_device_worker(
    spec: TerraceOffloadingSpec, memory: _core.HostMemory, rank: int, kv_caches: CanonicalKVCaches
) -> OffloadingWorker:
    """vLLM's worker for tensors of a device."""
    region = _Region(memory, rank, spec.cpu_page_size_per_worker)
    try:
        return CPUOffloadingWorker(
            kv_caches=kv_caches,
            blocks_per_chunk=spec.blocks_per_chunk,
            num_cpu_chunks=memory.slot_count,
            mmap_region=region,
        )
    except BaseException:
        region.cleanup()
        raise
