"""A secondary tier written in Python.

Native tiers need no interpreter. One in Python is called by the manager with its lock held, which waits for the
interpreter then: it must be quick, do its I/O on threads of its own, and never call the manager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

MISS, HIT, RETRY = 0, 1, 2
"""What :meth:`Tier.lookup` answers: not here; here; not known yet, ask again next step."""


class JobResult(NamedTuple):
    """How a job ended. Each job is reported once."""

    job_id: int
    success: bool
    good_keys: frozenset[bytes] | None = None
    """Of a job without success: the keys that succeeded all the same."""
    bytes: int = 0
    seconds: float | None = None
    """How long the tier worked on it; None if it does not know."""


class Tier(ABC):
    """Moves chunks between slots of host memory and a place of its own.

    A request is what the engine called it with: its name, or the object whose ``req_id`` that is; for one of a peer,
    what ``Node(make_context=...)`` makes of its number.

    What a method raises counts as a failure, as does a job that fails whole or does not end in time: after some in a
    row the tier is left alone for a while.
    """

    type: str = "python"
    load_source: str = "other"
    """"host", "memory", "disk", "object", "peer" or "other"."""
    serves_external_requests: bool = False
    backpressure: str = "off"
    """What of the stores is left out while it takes longer than ``backpressure_ms_per_mib``: "off", "throttle", "drop"."""
    backpressure_ms_per_mib: int = 10
    serves_between_steps: bool = False
    """Whether the control thread may serve it, between the engine's steps."""
    failed_jobs_are_faults: bool = True
    """False if all its jobs may fail while it works: it cannot store, or what its look-ups find is a guess."""

    @abstractmethod
    def lookup(self, key: bytes, request: Any) -> int:
        """MISS, HIT or RETRY. From memory: no I/O."""

    @abstractmethod
    def submit(self, job_id: int, keys: list[bytes], slots: list[int], is_load: bool, request: Any) -> None:
        """Queues a copy of slots to here or, if ``is_load``, from here. ``keys`` and ``slots`` are co-indexed; the slots
        are the tier's to read or write until the job is reported."""

    @abstractmethod
    def take_finished(self) -> Sequence[JobResult] | list[tuple]:
        """What ended since the last call, as a list."""

    def on_new_request(self, request: Any) -> bool:
        """True if the tier wants all chunks of the request, also those that host memory has."""
        return False

    def on_request_finished(self, request: Any) -> None:
        """Nothing but results of its jobs follows."""

    def on_schedule_end(self, step: Any) -> None:
        """Once at the end of each step of the engine; ``step`` is what that gave to on_schedule_end()."""

    def has_pending_work(self) -> bool:
        """Whether an idle engine must keep stepping for it, beyond its jobs."""
        return False

    def serve_external_requests(self, server: Any) -> None:
        """Answers what has arrived from outside, with a ``TierServer`` that is valid for this call."""

    def drain(self) -> None:
        """Returns when no job is under way."""

    def shutdown(self) -> None:
        """The last call."""


def key_of(block_hash: bytes, group: int = 0) -> bytes:
    """The key of a chunk: its hash (1 to 32 bytes), then its KV-cache group, 4 bytes, highest first."""
    if not 1 <= len(block_hash) <= 32:
        raise ValueError(f"a chunk's hash has 1 to 32 bytes, not {len(block_hash)}")
    return block_hash + group.to_bytes(4, "big")


def keys_of(hashes: Iterable[bytes], group: int = 0) -> list[bytes]:
    """:func:`key_of` for each."""
    return [key_of(one, group) for one in hashes]
