"""The worker's side: copies between vLLM's KV cache and host memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

from .. import _core
from ..errors import TerraceError

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec

logger = init_logger(__name__)

WAIT_S = 60.0
"""How long wait() waits for copies and the model step before them: it is never this long, unless a copy was lost."""


class ComputeStream:
    """Where a device's copies come after: the stream on which the calling thread computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event()

    def record(self) -> int:
        """The handle of an event behind all that was put into the stream so far; good until the next call."""
        self._event.record(torch.cuda.current_stream(self._device))
        return self._event.cuda_event


class TerraceOffloadingWorker(OffloadingWorker):
    """Copies between KV-cache tensors and the rank's part of the slots.

    Submitting queues. Tensors of the CPU are copied by threads, without the interpreter; those of a CUDA device by the
    device, after what the calling thread has put into its stream. Results come in the order in which the copies end.
    Confined to the worker's thread.

    Args:
        memory: the slots, shared with the scheduler.
        rank: whose part of each slot this worker reads and writes.
        kv_caches: int8 tensors (blocks, page bytes) of one device, and which of them each group uses.
        blocks_per_chunk: blocks in a slot, for each tensor one after the other.
        threads: how many copy tensors of the CPU.
    """

    def __init__(
        self,
        memory: _core.HostMemory,
        rank: int,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        threads: int = 2,
    ) -> None:
        tensors = []
        devices = list(dict.fromkeys(cache.tensor.device for cache in kv_caches.tensors))
        if len(devices) > 1 or any(device.type not in ("cpu", "cuda") for device in devices):
            raise ValueError(f"this worker copies tensors of the CPU or of one CUDA device, not of {devices}")
        on_device = bool(devices) and devices[0].type == "cuda"
        for cache in kv_caches.tensors:
            tensor = cache.tensor
            stride = tensor.stride(0) * tensor.element_size()
            tensors.append((tensor.data_ptr(), tensor.shape[0], stride, cache.page_size_bytes))
        # Several layers of a group may lie in one page: it is copied once, as far as the longest reaches.
        groups = []
        for refs in kv_caches.group_data_refs:
            parts: dict[int, int] = {}
            for ref in refs:
                parts[ref.tensor_idx] = max(parts.get(ref.tensor_idx, 0), ref.page_size_bytes)
            groups.append(sorted(parts.items()))
        self._kv_caches = kv_caches  # The copier has their addresses.
        self._blocks_per_chunk = blocks_per_chunk
        self._memory: _core.HostMemory | None = memory
        self._compute = ComputeStream(devices[0]) if on_device else None
        self._copier: _core.BlockCopier | None = _core.BlockCopier.create(
            memory, rank, tensors, groups, blocks_per_chunk, threads, device=devices[0].index if on_device else -1
        )
        self._is_set_up = False

    def _submit(
        self, job_id: int, device: GPULoadStoreSpec, host: LoadStoreSpec, is_store: bool, urgent: bool = False
    ) -> bool:
        if not self._is_set_up:
            # A job comes from the scheduler, which has mapped the memory then.
            self._memory.await_all()
            self._is_set_up = True
        self._copier.submit(
            job_id,
            is_store,
            device.block_ids,
            [int(size) for size in device.group_sizes],
            [int(first) for first in device.block_indices],
            host.block_ids,
            self._blocks_per_chunk,
            urgent,
            after_event=0 if self._compute is None else self._compute.record(),
        )
        return True

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, src_spec, dst_spec, True)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        return self._submit(job_id, dst_spec, src_spec, False, expedited)

    def get_finished(self) -> list[TransferResult]:
        if self._copier is None:
            return []
        results = []
        for job, size, seconds, error in self._copier.take_finished():
            if error is not None:
                logger.error("Terrace: copy job %d failed: %s", job, error)
            results.append(TransferResult(job, error is None, size, seconds))
        return results

    def wait(self, job_ids: set[int]) -> None:
        if self._copier is None or self._copier.wait_for(list(job_ids), WAIT_S):
            return
        raise TerraceError(
            f"copies {sorted(job_ids)} between the KV cache and host memory took longer than {WAIT_S:.0f} s in "
            f"thread {threading.current_thread().name}"
        )

    def shutdown(self) -> None:
        self._copier = None
        self._memory = None
