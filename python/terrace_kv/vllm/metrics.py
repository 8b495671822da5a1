"""What vLLM's /metrics shows: its own names where the meaning is the same, ``terrace_*`` beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)
from vllm.v1.kv_offload.cpu.common import CPUOffloadingMetrics as Cpu
from vllm.v1.kv_offload.tiering.base import TIER_LABEL
from vllm.v1.kv_offload.tiering.base import TieringOffloadingMetrics as Tiering

from .._core import StatsFeed

if TYPE_CHECKING:
    from .._core import Manager
    from .tiers import VllmTier

PRIMARY = ("0:primary",)

_TIER = (TIER_LABEL,)

_COUNTERS = {
    "terrace_host_evicted_chunks": "Chunks that made room in host memory.",
    "terrace_host_store_refusals": "Offers of stores that found no room.",
    "terrace_host_promotions_overdue": "Chunks on their way from a tier that became misses at their deadline.",
    "terrace_request_overdue_lookups": "Requests that were told to compute what they had waited for too long.",
    "terrace_host_resets": "Resets of host memory.",
}
_GAUGES = {
    "terrace_host_slots": "Slots of host memory.",
    "terrace_host_ready_chunks": "Chunks in host memory that can be loaded.",
    "terrace_host_orphaned_slots": "Slots that a reset forgot and that are still being copied.",
    "terrace_host_stuck_slots": "Slots of overdue promotions whose tier has not reported.",
}
_TIER_COUNTERS = {
    "terrace_tier_faults": "Times a tier threw, broke its contract or left a look-up unanswered.",
    "terrace_tier_downs": "Times a tier was left alone for a while.",
    "terrace_tier_unknown_reports": "Results of jobs that a tier did not have.",
    "terrace_tier_dropped_chunks": "Chunks that a tier was not given.",
}
_OWN_COUNTER = "terrace_tier_own"
_HEALTH = "terrace_tier_up"
_LOCK_WAIT = "terrace_lock_wait_seconds"

_METRICS = {
    # Of host memory.
    "usage": Cpu.CPU_CACHE_USAGE_PERC,
    "write_usage": Cpu.CPU_CACHE_WRITE_USAGE_PERC,
    "read_usage": Cpu.CPU_CACHE_READ_USAGE_PERC,
    "allocation_size": Cpu.CPU_ALLOCATION_SIZE,
    "skipped_stores": Cpu.STORES_SKIPPED,
    "promotion_refusals": Tiering.PROMOTION_ALLOCATION_FAILURES,
    "evicted_chunks": "terrace_host_evicted_chunks",
    "store_refusals": "terrace_host_store_refusals",
    "promotions_overdue": "terrace_host_promotions_overdue",
    "lookups_overdue": "terrace_request_overdue_lookups",
    "resets": "terrace_host_resets",
    "slot_count": "terrace_host_slots",
    "ready_chunks": "terrace_host_ready_chunks",
    "orphaned_slots": "terrace_host_orphaned_slots",
    "stuck_slots": "terrace_host_stuck_slots",
    "lock_wait": _LOCK_WAIT,
    # Of host memory and of each tier.
    "queried_chunks": Tiering.CHUNK_QUERIES,
    "hit_chunks": Tiering.CHUNK_HITS,
    "lookup_time": Tiering.LOOKUP_SYNC_DELAY,
    # Of each tier.
    "lookup_delay": Tiering.LOOKUP_ASYNC_DELAY,
    "promotion_latency": Tiering.PROMOTION_LATENCY,
    "promotion_bytes": Tiering.READ_BYTES,
    "promotion_time": Tiering.READ_TIME,
    "promotion_failed_jobs": Tiering.PROMOTION_JOB_FAILURES,
    "promotion_jobs_in_flight": Tiering.ACTIVE_PROMOTION_JOBS,
    "promotion_slots_in_flight": Tiering.PRIMARY_WRITE_USAGE_PERC,
    "cascade_bytes": Tiering.WRITE_BYTES,
    "cascade_time": Tiering.WRITE_TIME,
    "cascade_failed_jobs": Tiering.CASCADE_JOB_FAILURES,
    "cascade_jobs_in_flight": Tiering.ACTIVE_CASCADE_JOBS,
    "cascade_slots_in_flight": Tiering.PRIMARY_READ_USAGE_PERC,
    "seconds_per_mib": Tiering.BACKPRESSURE_STORE_LATENCY_EMA,
    "dropped_by_backpressure": Tiering.BACKPRESSURE_BLOCKS_DROPPED,
    "faults": "terrace_tier_faults",
    "downs": "terrace_tier_downs",
    "unknown_reports": "terrace_tier_unknown_reports",
    "dropped": "terrace_tier_dropped_chunks",
    "up": _HEALTH,
    "own": _OWN_COUNTER,
}
"""The metric of what the native part counts (python/src/stats_feed.cc)."""


def terrace_definitions() -> dict[str, OffloadingMetricMetadata]:
    """The metrics that are Terrace's own."""
    out: dict[str, OffloadingMetricMetadata] = {}
    for name, help_text in _COUNTERS.items():
        out[name] = OffloadingCounterMetadata(documentation=help_text)
    for name, help_text in _GAUGES.items():
        out[name] = OffloadingGaugeMetadata(documentation=help_text)
    for name, help_text in _TIER_COUNTERS.items():
        out[name] = OffloadingCounterMetadata(documentation=help_text, labelnames=_TIER)
    out[_HEALTH] = OffloadingGaugeMetadata(
        documentation="1 if the tier is asked and given jobs, 0 while it is left alone.", labelnames=_TIER
    )
    out[_OWN_COUNTER] = OffloadingGaugeMetadata(
        documentation="What a native tier counts itself, by the names of docs/metrics.md.",
        labelnames=(TIER_LABEL, "counter"),
    )
    out[_LOCK_WAIT] = OffloadingCounterMetadata(
        documentation="Time spent waiting for the manager's lock, in seconds.", labelnames=("lane",)
    )
    return out


def _type_words() -> tuple[str, str, str]:
    """What vLLM calls a counter, a gauge and a histogram in a payload."""
    one = OffloadingConnectorStats()
    one.increase_counter("counter")
    one.set_gauge("gauge", 0)
    one.observe_histogram("histogram", 0)
    types, _ = one.metric_sections()
    return types["counter"], types["gauge"], types["histogram"]


class StatsTaker:
    """Makes vLLM's payload of what changed since the last one.

    The manager counts durations in buckets, so that the samples in the payload are the buckets' middles (at most 1.42
    times off). A gauge keeps its value until another is said.
    """

    def __init__(self, core: Manager, tiers: Sequence[VllmTier]) -> None:
        self._feed = StatsFeed(core, *_type_words(), _METRICS)
        self._tiers = tiers

    def take(self) -> OffloadingConnectorStats:
        out = OffloadingConnectorStats()
        self._feed.take(*out.metric_sections())
        for tier in self._tiers:
            tier.add_stats_to(out)
        return out
