"""vLLM's own secondary tiers, and others of its interface, on Terrace's manager."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.backpressure import DropStorePolicy
from vllm.v1.kv_offload.tiering.base import ParentManager, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import tiers as terrace_tiers
from .._core import TierServer
from ..errors import TerraceError

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

logger = init_logger(__name__)

_ANSWERS = {
    LookupResult.MISS: terrace_tiers.MISS,
    LookupResult.HIT: terrace_tiers.HIT,
    LookupResult.RETRY: terrace_tiers.RETRY,
    LookupResult.HIT_PENDING: terrace_tiers.RETRY,
}
_PARENT_ANSWERS = (LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY)
_SOURCES = {
    CacheHitSource.HOST: "memory",
    CacheHitSource.DISK: "disk",
    CacheHitSource.P2P: "peer",
}
LOG_PERIOD_S = 60.0
"""Of a fault that repeats, one line in so long is logged."""

_EMPTY_STEP = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())


class LogLimiter:
    """Keeps a fault that repeats from filling the log. Of one thread at a time."""

    def __init__(self) -> None:
        self._next = 0.0  # time.monotonic()
        self._held_back = 0

    def admit(self) -> int | None:
        """How many lines were held back since the last one; None if this one is, too."""
        now = time.monotonic()
        if now < self._next:
            self._held_back += 1
            return None
        self._next = now + LOG_PERIOD_S
        more, self._held_back = self._held_back, 0
        return more


def peer_context(number: int) -> ReqContext:
    """What stands for a request of a native tier's peer before tiers of vLLM."""
    return ReqContext(req_id=f"terrace-peer-{number}")


def place_of(index: int) -> str:
    """How a tier is called in what an operator reads."""
    return f"secondary_tiers[{index}]"


@contextlib.contextmanager
def starting(index: int, kind: Any) -> Iterator[None]:
    """What the code of a tier raises at the start names the tier.

    Raises:
        TerraceError: instead of any other exception.
    """
    try:
        yield
    except Exception as error:
        raise TerraceError(f"{place_of(index)} ({kind}): {type(error).__name__}: {error}") from error


class VllmTier(terrace_tiers.Tier):
    """Makes a SecondaryTierManager of vLLM a tier of Terrace. Lock order: manager, then interpreter.

    What the tier raises when Terrace's manager calls ends there, as a fault of the tier. The plug-in's own calls
    (touch(), take_events(), add_stats_to()) raise nothing: a fault in them is logged, and said to Terrace's manager with
    the end of the next step.

    Args:
        tier: of vLLM.
        place: its index in secondary_tiers.
    """

    # Under vLLM a failed job costs its own chunks alone, and some of its tiers live on that: kvcr without memory of its
    # own fails every store, and with a hint it finds whatever it is asked for.
    failed_jobs_are_faults = False

    def __init__(self, tier: SecondaryTierManager, place: int) -> None:
        self.tier = tier
        self.place = place
        self._fault: str | None = None  # That Terrace's manager has not heard of.
        self._fault_log = LogLimiter()
        self.type = tier.tier_type
        self.load_source = _SOURCES.get(tier.cache_hit_source, "other")
        self.serves_between_steps = bool(tier.tolerates_off_thread_polling)
        served = type(tier).serve_external_requests is not SecondaryTierManager.serve_external_requests
        self.serves_external_requests = served or self.serves_between_steps
        self._chunks: dict[int, int] = {}  # By job.
        detector = tier.bp_detector
        if detector is not None:
            # Terrace's own does the work: it knows when a job really began.
            self.backpressure = "drop" if isinstance(detector.policy, DropStorePolicy) else "throttle"
            self.backpressure_ms_per_mib = max(1, round(getattr(detector, "_high", 0.01) * 1e3))

    def lookup(self, key: bytes, request: Any) -> int:
        if not request.load_tier_filter.allows(self.tier.medium, self.tier.locality):
            return terrace_tiers.MISS
        return _ANSWERS[self.tier.lookup(key, request)]

    def submit(self, job_id: int, keys: list[bytes], slots: list[int], is_load: bool, request: Any) -> None:
        job = TransferJob(
            job_id=job_id,
            keys=keys,
            chunk_ids=np.array(slots, dtype=np.int32),
            is_promotion=is_load,
            req_context=request,
        )
        self.note_job(job_id, len(keys))
        if is_load:
            self.tier.submit_load(job)
        else:
            self.tier.submit_store(job)

    def note_job(self, job_id: int, chunks: int) -> None:
        self._chunks[job_id] = chunks

    def take_finished(self) -> list[tuple]:
        results = []
        for result in self.tier.get_finished_jobs():
            good = None if result.successful_keys is None else frozenset(result.successful_keys)
            chunks = self._chunks.pop(result.job_id, 0)
            size = result.transfer_bytes
            if size is None:
                size = (chunks if result.success else len(good or ())) * self.tier.block_size_bytes
            results.append((result.job_id, bool(result.success), good, int(size), result.transfer_time))
        return results

    def on_new_request(self, request: Any) -> bool:
        return self.tier.on_new_request(request).policy is OffloadPolicy.REQUEST_LEVEL

    def on_request_finished(self, request: Any) -> None:
        self.tier.on_request_finished(request)

    def on_schedule_end(self, step: Any) -> None:
        self.tier.on_schedule_end(_EMPTY_STEP if step is None else step)
        fault, self._fault = self._fault, None
        if fault is not None:
            raise TerraceError(fault)

    def has_pending_work(self) -> bool:
        return bool(self.tier.has_pending_work())

    def serve_external_requests(self, server: TierServer) -> None:
        self.tier.serve_external_requests(_Parent(server, self))

    def drain(self) -> None:
        self.tier.drain_jobs()

    def shutdown(self) -> None:
        self.tier.shutdown()

    def touch(self, keys: Collection[bytes], request: ReqContext) -> None:
        try:
            self.tier.touch(keys, request)
        except Exception as error:
            self._note_fault("touch", error)

    def take_events(self) -> list[OffloadingEvent]:
        try:
            return list(self.tier.take_events())
        except Exception as error:
            self._note_fault("take_events", error)
            return []

    def add_stats_to(self, stats: OffloadingConnectorStats) -> None:
        try:
            own = self.tier.get_stats()
            if own is not None and not own.is_empty():
                stats.aggregate(own)
        except Exception as error:
            self._note_fault("get_stats", error)

    def _note_fault(self, method: str, error: Exception) -> None:
        self._fault = f"{method} raised {type(error).__name__}: {error}"
        more = self._fault_log.admit()
        if more is None:
            return
        logger.error(
            "Terrace: %s (%s): %s (%d more since the last such line)",
            place_of(self.place),
            self.type,
            self._fault,
            more,
            exc_info=error,
        )


class _RequestNumber:
    """Under which number the manager knows a request of a peer: kept in the request's context."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Parent(ParentManager):
    """The manager as a tier of vLLM that serves peers sees it; valid during one serve_external_requests()."""

    def __init__(self, server: TierServer, tier: VllmTier) -> None:
        self._server = server
        self._tier = tier

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        req_context.set_state(_RequestNumber(self._server.begin_request()))
        return RequestOffloadingContext()

    @staticmethod
    def _number(req_context: ReqContext) -> int:
        state = req_context.get_state(_RequestNumber)
        if state is None:
            raise ValueError(f"request {req_context.req_id}: call on_new_request() first")
        return state.number

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        return _PARENT_ANSWERS[self._server.lookup(key, self._number(req_context))]

    def create_store_job(self, keys: Collection[bytes], req_context: ReqContext) -> TransferJob:
        keys = list(keys)
        made = self._server.create_store_job(keys, self._number(req_context))
        if made is None:
            raise RuntimeError(f"request {req_context.req_id}: one of {len(keys)} chunks cannot be pinned now")
        job_id, slots = made
        self._tier.note_job(job_id, len(keys))
        return TransferJob(
            job_id=job_id,
            keys=keys,
            chunk_ids=np.array(slots, dtype=np.int32),
            is_promotion=False,
            req_context=req_context,
            submit_time=time.monotonic(),
        )

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._server.finish_request(self._number(req_context))
