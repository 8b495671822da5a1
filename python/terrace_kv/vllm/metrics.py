"""What vLLM's /metrics shows: its own names where the meaning is the same, ``terrace_*`` beside them."""

from __future__ import annotations

import math
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

if TYPE_CHECKING:
    from .._core import Manager

PRIMARY = ("0:primary",)

_TIER = (TIER_LABEL,)

_COUNTERS = {
    "terrace_evicted_chunks": ("evicted_chunks", "Chunks that made room in host memory."),
    "terrace_store_refusals": ("store_refusals", "Offers of stores that found no room."),
    "terrace_promotions_overdue": ("promotions_overdue", "Chunks on their way from a tier that became misses at their deadline."),
    "terrace_lookups_overdue": ("lookups_overdue", "Requests that were told to compute what they had waited for too long."),
    "terrace_resets": ("resets", "Resets of host memory."),
}
_GAUGES = {
    "terrace_host_slots": ("slot_count", "Slots of host memory."),
    "terrace_host_ready_chunks": ("ready_chunks", "Chunks in host memory that can be loaded."),
    "terrace_orphaned_slots": ("orphaned_slots", "Slots that a reset forgot and that are still being copied."),
    "terrace_stuck_slots": ("stuck_slots", "Slots of overdue promotions whose tier has not reported."),
}
_TIER_COUNTERS = {
    "terrace_tier_faults": ("faults", "Times a tier threw or broke its contract."),
    "terrace_tier_downs": ("downs", "Times a tier was left alone for a while."),
    "terrace_tier_unknown_reports": ("unknown_reports", "Results of jobs that a tier did not have."),
    "terrace_tier_dropped_chunks": (
        ("dropped_by_backpressure_chunks", "dropped_while_down_chunks", "dropped_while_waiting_chunks"),
        "Chunks that a tier was not given.",
    ),
}
_OWN_COUNTER = "terrace_tier_own"
_HEALTH = "terrace_tier_up"
_LOCK_WAIT = "terrace_lock_wait_seconds"
_LANE = ("lane",)


def terrace_definitions() -> dict[str, OffloadingMetricMetadata]:
    """The metrics that are Terrace's own."""
    out: dict[str, OffloadingMetricMetadata] = {}
    for name, (_, help_text) in _COUNTERS.items():
        out[name] = OffloadingCounterMetadata(documentation=help_text)
    for name, (_, help_text) in _GAUGES.items():
        out[name] = OffloadingGaugeMetadata(documentation=help_text)
    for name, (_, help_text) in _TIER_COUNTERS.items():
        out[name] = OffloadingCounterMetadata(documentation=help_text, labelnames=_TIER)
    out[_HEALTH] = OffloadingGaugeMetadata(
        documentation="1 if the tier is asked and given jobs, 0 while it is left alone.", labelnames=_TIER
    )
    out[_OWN_COUNTER] = OffloadingGaugeMetadata(
        documentation="What a native tier counts itself, by the names of docs/metrics.md.",
        labelnames=(TIER_LABEL, "counter"),
    )
    out[_LOCK_WAIT] = OffloadingCounterMetadata(
        documentation="Time spent waiting for the manager's lock, in seconds.", labelnames=_LANE
    )
    return out


def _bucket_seconds(bucket: int) -> float:
    """A duration in the middle of a bucket: [2^(bucket-1), 2^bucket) ns."""
    return 2.0**bucket * math.sqrt(0.5) * 1e-9


class StatsTaker:
    """Makes vLLM's payload of what changed since the last one.

    The manager counts durations in buckets, so that the samples in the payload are the buckets' middles (at most 1.42
    times off).
    """

    def __init__(self, core: Manager, tiers: Sequence[Any]) -> None:
        self._core = core
        self._tiers = tiers
        self._before: dict[str, Any] = core.stats()
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}  # As they were said last.

    def take(self) -> OffloadingConnectorStats:
        now = self._core.stats()
        before, self._before = self._before, now
        out = OffloadingConnectorStats()
        self._host(out, before, now)
        for place, (old, new) in enumerate(zip(before["tiers"], now["tiers"])):
            label = (f"{place + 1}:{new['type']}",)
            if old != new or (_HEALTH, label) not in self._gauges:
                self._tier(out, label, now["slot_count"], old, new)
        for tier in self._tiers:
            own = tier.get_stats()
            if own is not None and not own.is_empty():
                out.aggregate(own)
        return out

    def _host(self, out: OffloadingConnectorStats, before: dict[str, Any], now: dict[str, Any]) -> None:
        slots = max(now["slot_count"], 1)
        pinned, writing = now["pinned_chunks"], now["writing_chunks"]
        out.set_gauge(Cpu.CPU_CACHE_USAGE_PERC, (pinned + writing) / slots)
        out.set_gauge(Cpu.CPU_CACHE_WRITE_USAGE_PERC, writing / slots)
        out.set_gauge(Cpu.CPU_CACHE_READ_USAGE_PERC, pinned / slots)
        # Slots for a promotion are taken one by one.
        single = now["allocation_sizes"][0] - before["allocation_sizes"][0]
        for size, count in now["store_sizes"].items():
            new = count - before["store_sizes"].get(size, 0)
            single -= new if size == 1 else 0
            for _ in range(new):
                out.observe_histogram(Cpu.CPU_ALLOCATION_SIZE, size)
        for _ in range(single):
            out.observe_histogram(Cpu.CPU_ALLOCATION_SIZE, 1)
        if now["store_threshold"] >= 2:
            out.increase_counter(
                Cpu.STORES_SKIPPED, now["skipped_store_chunks"] - before["skipped_store_chunks"]
            )
        _count(
            out,
            Tiering.PROMOTION_ALLOCATION_FAILURES,
            now["promotion_refusals"] - before["promotion_refusals"],
        )
        hits = now["hit_time"]["count"] - before["hit_time"]["count"]
        misses = now["misses"] - before["misses"]
        if now["tiers"]:
            misses = now["miss_time"]["count"] - before["miss_time"]["count"]
            for key in ("hit_time", "miss_time"):
                _observe(out, Tiering.LOOKUP_SYNC_DELAY, before[key], now[key], PRIMARY)
        _count(out, Tiering.CHUNK_QUERIES, hits + misses, PRIMARY)
        _count(out, Tiering.CHUNK_HITS, hits, PRIMARY)
        for name, (key, _) in _COUNTERS.items():
            _count(out, name, now[key] - before[key])
        for name, (key, _) in _GAUGES.items():
            self._gauge(out, name, now[key])
        for lane in ("engine", "control"):
            waited = now["lock"][lane]["wait"]["sum_s"] - before["lock"][lane]["wait"]["sum_s"]
            _count(out, _LOCK_WAIT, waited, (lane,))

    def _gauge(self, out: OffloadingConnectorStats, name: str, value: float, label: tuple[str, ...] = ()) -> None:
        """A gauge keeps its value until another is said."""
        if self._gauges.get((name, label)) != value:
            self._gauges[name, label] = value
            out.set_gauge(name, value, label)

    def _tier(
        self, out: OffloadingConnectorStats, label: tuple[str], slots: int, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        slots = max(slots, 1)
        _count(out, Tiering.CHUNK_QUERIES, new["queried_chunks"] - old["queried_chunks"], label)
        _count(out, Tiering.CHUNK_HITS, new["hit_chunks"] - old["hit_chunks"], label)
        for direction, size, time, failures, active, usage in (
            ("promotion", Tiering.READ_BYTES, Tiering.READ_TIME, Tiering.PROMOTION_JOB_FAILURES,
             Tiering.ACTIVE_PROMOTION_JOBS, Tiering.PRIMARY_WRITE_USAGE_PERC),
            ("cascade", Tiering.WRITE_BYTES, Tiering.WRITE_TIME, Tiering.CASCADE_JOB_FAILURES,
             Tiering.ACTIVE_CASCADE_JOBS, Tiering.PRIMARY_READ_USAGE_PERC),
        ):
            was, is_now = old[direction], new[direction]
            _count(out, size, is_now["bytes"] - was["bytes"], label)
            _count(out, time, is_now["time_s"] - was["time_s"], label)
            _count(out, failures, is_now["failed_jobs"] - was["failed_jobs"], label)
            self._gauge(out, active, is_now["jobs_in_flight"], label)
            self._gauge(out, usage, is_now["slots_in_flight"] / slots, label)
        for key, name, labels in (
            ("lookup_time", Tiering.LOOKUP_SYNC_DELAY, label),
            ("lookup_delay", Tiering.LOOKUP_ASYNC_DELAY, label),
            ("promotion_latency", Tiering.PROMOTION_LATENCY, (*label, "success")),
            ("failed_promotion_latency", Tiering.PROMOTION_LATENCY, (*label, "failure")),
        ):
            _observe(out, name, old[key], new[key], labels)
        if new["seconds_per_mib"] > 0:
            self._gauge(out, Tiering.BACKPRESSURE_STORE_LATENCY_EMA, new["seconds_per_mib"], label)
        dropped = new["dropped_by_backpressure_chunks"] - old["dropped_by_backpressure_chunks"]
        _count(out, Tiering.BACKPRESSURE_BLOCKS_DROPPED, dropped, label)
        for name, (keys, _) in _TIER_COUNTERS.items():
            keys = (keys,) if isinstance(keys, str) else keys
            _count(out, name, sum(new[key] - old[key] for key in keys), label)
        self._gauge(out, _HEALTH, 0 if new["health"] == "down" else 1, label)
        for counter, value in new["counters"].items():
            self._gauge(out, _OWN_COUNTER, value, (*label, counter))


def _observe(
    out: OffloadingConnectorStats, name: str, old: dict[str, Any], new: dict[str, Any], labels: tuple[str, ...]
) -> None:
    if new["count"] == old["count"]:
        return
    for bucket, count in new["counts"].items():
        for _ in range(count - old["counts"].get(bucket, 0)):
            out.observe_histogram(name, _bucket_seconds(bucket), labels)


def _count(
    out: OffloadingConnectorStats, name: str, increase: float, label: tuple[str, ...] = ()
) -> None:
    if increase > 0:
        out.increase_counter(name, increase, label)
