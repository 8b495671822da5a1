"""vLLM's OffloadingManager over Terrace's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy import frombuffer, int32, ndarray
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..node import Node
from .filters import sources_allowed
from .metrics import StatsTaker
from .tiers import LogLimiter, VllmTier

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

logger = init_logger(__name__)

ANSWERS = (LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY)
"""What a node's manager is to answer, in Terrace's order."""

_SOURCES = {
    "host": CacheHitSource.HOST,
    "memory": CacheHitSource.HOST,
    "disk": CacheHitSource.DISK,
    "object": CacheHitSource.EXTERNAL_UNSPECIFIED,
    "peer": CacheHitSource.P2P,
    "other": CacheHitSource.EXTERNAL_UNSPECIFIED,
}

_WHOLE_REQUEST = OffloadPolicy.REQUEST_LEVEL
_NEW_CHUNKS = OffloadPolicy.CHUNK_LEVEL

_ROUTE_KEYS = ("remote_kv_source", "remote_prefiller", "remote_decoder")


def _ends_of(keys: Collection[bytes], req_context: ReqContext) -> Mapping[bytes, int] | list[int] | None:
    """Where each chunk ends in its request, in tokens; None if that is not known of all."""
    if type(req_context) is ReqContext:
        return req_context._offload_key_positions
    ends = list(map(req_context.get_offload_key_position, keys))
    return None if None in ends else ends


class SlotsSpec(CPULoadStoreSpec):
    """The slots of a copy. Their array is made by who copies: the scheduler's thread has no use for it.

    Args:
        slots: int32, packed.
    """

    def __init__(self, slots: bytes) -> None:
        self._slots = slots

    @cached_property
    def block_ids(self) -> ndarray:
        return frombuffer(self._slots, int32).copy()


class TerraceOffloadingManager(OffloadingManager):
    """The scheduler's side. The work is done in C++: what is called per chunk or per step goes there without a frame of
    Python between.

    A call without :attr:`lock` takes it for itself; under it the thread's calls agree with one another.

    Args:
        node: was made with :data:`ANSWERS`.
        enable_events: whether take_events() reports what host memory gained and lost.
        tiers: secondary tiers in Python, for what Terrace's manager does not ask them: touches, events and metrics.
        config_info: what vLLM's info metric is to show, one mapping for each tier.
        served_by_steps: peers are answered in the engine's steps alone, so that one without requests goes on stepping.
    """

    medium = Medium.CPU
    lock: Any = None  # An instance's own, from __init__() on: vLLM's is a property, and enters it several times a step.

    def __init__(
        self,
        node: Node,
        *,
        enable_events: bool = False,
        tiers: Sequence[VllmTier] = (),
        config_info: Sequence[Mapping[str, Any]] = ({},),
        served_by_steps: bool = False,
    ) -> None:
        self._node = node
        self._core = core = node.manager
        self._enable_events = enable_events
        self._tiers = tuple(tiers)
        self._config_info = list(config_info)
        self._stats = StatsTaker(core, self._tiers)
        self._route_log = LogLimiter()
        # Of the class below these only have the contract.
        self.lock = core.lock
        self.lookup = core.lookup
        self.complete_load = core.complete_load
        self.complete_store = core.complete_store
        self.on_request_finished = core.on_request_finished
        self.on_schedule_end = core.on_schedule_end
        self.has_pending_work = (lambda: True) if served_by_steps else core.has_pending_work

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        raise NotImplementedError  # Replaced by __init__().

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        sources = sources_allowed(req_context.load_tier_filter)
        try:
            route = self._route_of(req_context) if req_context.kv_transfer_params else None
            whole = self._core.on_new_request(req_context, sources, route)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # A client wrote it. What is raised here ends the engine for everybody.
            if not req_context.kv_transfer_params:
                raise
            self._note_bad_route(req_context, error)
            whole = self._core.on_new_request(req_context, sources, None)
        return RequestOffloadingContext(_WHOLE_REQUEST if whole else _NEW_CHUNKS)

    @staticmethod
    def _route_of(req_context: ReqContext) -> str | None:
        params = req_context.kv_transfer_params
        route = {key: params[key] for key in _ROUTE_KEYS if params.get(key) is not None}
        return json.dumps(route) if route else None

    def _note_bad_route(self, req_context: ReqContext, error: Exception) -> None:
        more = self._route_log.admit()
        if more is None:
            return
        logger.warning(
            "Terrace: request %s: its kv_transfer_params name no peer that can be asked, and it is served without: %s "
            "(%d more since the last such line)",
            req_context.req_id,
            "; ".join(str(error).splitlines()),
            more,
        )

    def get_load_source(self, key: bytes, req_context: ReqContext) -> CacheHitSource:
        return _SOURCES[self._core.get_load_source(key, req_context)]

    def prepare_load(self, keys: Collection[bytes], req_context: ReqContext) -> CPULoadStoreSpec:
        return SlotsSpec(self._core.prepare_load(keys, req_context, _ends_of(keys, req_context), True))

    def touch(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        with nullcontext() if self._core.holds_lock() else self.lock:
            self._core.touch(keys, req_context)
            for tier in self._tiers:
                tier.touch(keys, req_context)

    def prepare_store(self, keys: Collection[bytes], req_context: ReqContext) -> PrepareStoreOutput | None:
        # Only keys with a place in their request's prompt are a prefix that must not get a hole.
        ends = _ends_of(keys, req_context)
        plan = self._core.prepare_store(keys, req_context, ends is not None, ends, True)
        if plan is None:
            return None
        kept, slots, evicted = plan
        return PrepareStoreOutput(kept, SlotsSpec(slots), evicted)

    def take_events(self) -> Iterable[OffloadingEvent]:
        events: list[OffloadingEvent] = []
        if self._enable_events:
            for kind, keys in self._core.take_events():
                if kind == "lost":
                    logger.warning("Terrace: more KV events than are kept: those of before are lost")
                    continue
                failed = kind == "failed"
                removed = failed or kind == "removed"
                events.append(OffloadingEvent(keys, Medium.CPU, removed, metadata_only=failed))
        for tier in self._tiers:
            events.extend(tier.take_events())
        return events

    def reset_cache(self) -> None:
        removed, busy = self._core.reset_cache()
        logger.info("Terrace: forgot %d chunks; %d slots are free when their copies end", removed, busy)

    def on_reset_flushed(self) -> None:
        self._core.on_reset_flushed()

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._stats.take()

    def config_info(self) -> Sequence[Mapping[str, Any]]:
        return self._config_info

    def shutdown(self) -> None:
        self._node.shutdown()
