"""Which tiers a request may load from: vLLM's TierFilter as Terrace's set of sources."""

from __future__ import annotations

from vllm.v1.kv_offload.base import Locality, Medium, TierFilter

ALL_SOURCES = 0xFFFFFFFF

# By terrace::LoadSource: host, memory, disk, object, peer, other. None matches whatever is asked for.
_KINDS = (
    (Medium.CPU, Locality.LOCAL),
    (Medium.CPU, Locality.LOCAL),
    (Medium.STORAGE, None),
    (Medium.STORAGE, Locality.REMOTE),
    (Medium.CPU, Locality.REMOTE),
    (None, None),
)


def sources_allowed(tier_filter: TierFilter) -> int:
    """Bit i: the request may be served from source i. Host memory is always asked."""
    if tier_filter is TierFilter.ALL:
        return ALL_SOURCES
    return sum(1 << i for i, (medium, locality) in enumerate(_KINDS) if tier_filter.allows(medium, locality))
