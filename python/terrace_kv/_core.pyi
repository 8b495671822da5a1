"""The native part. Every method of Manager takes the manager's lock itself, unless its thread holds it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

version: str

def check_config(config_json: str) -> None:
    """ConfigError, with every fault, if it is none."""

def cpu_bytes_to_use(config_json: str) -> int:
    """The size of the host tier that a configuration asks for."""

def config_schema() -> str:
    """The JSON Schema (draft 2020-12) of a configuration."""

class CacheIdentity:
    """What must be equal for one process to use the chunks of another. Every field must be given."""

    def __init__(
        self,
        *,
        model: str,
        revision: str,
        dtype: str,
        layout: str,
        layout_version: int,
        tokens_per_chunk: int,
        chunk_bytes: int,
        shard_index: int = 0,
        shard_count: int,
        engine: str,
    ) -> None: ...
    @property
    def hex(self) -> str:
        """SHA-256 of all fields, 64 digits."""
    @property
    def model(self) -> str:
        """As it was given."""
    @property
    def chunk_bytes(self) -> int:
        """As it was given."""

class HostMemory:
    """The slots: ``memoryview(memory)`` has the shape (slot_count, stride_bytes) and format "b"."""

    @staticmethod
    def create(config_json: str, identity: CacheIdentity) -> HostMemory:
        """Of this process alone."""
    @staticmethod
    def share(
        config_json: str,
        identity: CacheIdentity,
        name: str,
        rank_count: int,
        process_count: int,
        rank: int | None,
        timeout_s: float,
        create: bool,
        instance: str = "",
    ) -> HostMemory:
        """Of several processes: one creates it, which waits for nobody, the others join it by name."""
    def await_all(self) -> None:
        """Blocks until all processes have mapped it; TerraceError names the one that did not."""
    @property
    def slot_count(self) -> int:
        """How many chunks fit."""
    @property
    def stride_bytes(self) -> int:
        """From one slot to the next."""
    @property
    def chunk_bytes(self) -> int:
        """Of a chunk, all ranks' parts together."""
    @property
    def rank_count(self) -> int:
        """How many parts a slot has."""
    @property
    def address(self) -> int:
        """Of the first slot, in this process."""

class ManagerLock:
    """Exclusive access to a manager, for as many calls as must agree. Not re-entrant."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading.Lock.acquire()."""
    def release(self) -> None:
        """Raises if this thread does not hold it."""
    def __enter__(self) -> ManagerLock: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

class Manager:
    """Which chunks are in host memory, and where. `request` is a name, or an object whose ``req_id`` is one; keys are
    bytes (``terrace_kv.key_of``). A request that was not announced is announced by its first call."""

    @property
    def lock(self) -> ManagerLock:
        """Held, this thread's calls agree with one another."""
    def holds_lock(self) -> bool:
        """Whether this thread does."""
    def on_new_request(self, request: Any, load_from: int = ..., transfer_params: str | None = None) -> bool:
        """First contact. `load_from`: bit i permits the source i of terrace/types.h; `transfer_params`: vLLM's
        kv_transfer_params as JSON. True if some tier wants all of its chunks offered."""
    def lookup(self, key: bytes, request: Any) -> Any:
        """Where the chunk is: one of the node's `answers`. O(1) if host memory has it."""
    def get_load_source(self, key: bytes, request: Any) -> str:
        """Whence the chunk came for the request: "host", "memory", "disk", "object", "peer" or "other"."""
    def prepare_load(
        self,
        keys: Iterable[bytes],
        request: Any,
        ends: Sequence[int] | Mapping[bytes, int] | None = None,
        packed: bool = False,
    ) -> list[int] | bytes:
        """Pins the chunks; their slots, in order. ChunkGone, and nothing pinned, if one is not ready. `ends`: the token
        of the request at which each chunk ends, in the keys' order or by key; None, or a dict that lacks one: they
        are in the order of its prefix. `packed`: slots as the bytes of 4-byte integers."""
    def complete_load(self, keys: Iterable[bytes], request: Any) -> None:
        """The engine has copied them; what the request has not pinned is passed over."""
    def touch(self, keys: Iterable[bytes], request: Any) -> None:
        """They are evicted later, as if they had been used."""
    def prepare_store(
        self,
        keys: Iterable[bytes],
        request: Any,
        is_sequence: bool = True,
        ends: Sequence[int] | Mapping[bytes, int] | None = None,
        packed: bool = False,
    ) -> tuple[list[bytes], list[int] | bytes, list[bytes]] | None:
        """Reserves slots for those of `keys` that are absent: those keys, their slots, and the keys evicted for them.
        None if there is no room now. `ends` and `packed` as in prepare_load(); not `is_sequence`, or a dict of ends
        that lacks one: the chunks are unrelated."""
    def complete_store(self, keys: Iterable[bytes], request: Any, success: bool = True) -> None:
        """The engine has written them, or not: they can be loaded and go to the tiers, or they are forgotten."""
    def on_request_finished(self, request: Any) -> None:
        """Nothing but completions of its copies follows."""
    def on_schedule_end(self, step: Any = None) -> None:
        """The last call of each step: promotions begin, tiers are polled. `step` is what tiers in Python are given."""
    def has_pending_work(self) -> bool:
        """Whether an engine without requests must go on stepping."""
    def take_events(self) -> list[tuple[str, list[bytes]]]:
        """(kind, keys), oldest first, an item for each call and kind. "stored", "removed"; "failed": their store did,
        and they have not come back since; "lost": more happened than is kept, ready_chunks() is the truth."""
    def ready_chunks(self) -> list[bytes]:
        """The keys of all that can be loaded. O(slots)."""
    def reset_cache(self) -> tuple[int, int]:
        """Forgets everything at once: (chunks removed, slots that copies still use). Those of the engine's own copies
        are free after on_reset_flushed()."""
    def on_reset_flushed(self) -> int:
        """The engine's copies of before the last reset have ended; how many slots that freed."""
    def stats(self) -> dict[str, Any]:
        """terrace/manager_stats.h, by the same names; times in seconds; of a histogram `counts` has the buckets
        that are not empty: i counts durations below 2^i ns. And of this class: `misses` and `hit_time` (one
        in 16 is measured) of lookup(), `store_sizes` (how many slots the stores wanted: how often)."""
    def drain(self, timeout_s: float) -> bool:
        """Waits until no job is under way; False if some still are after that time."""
    def shutdown(self) -> None:
        """The last call. The lock is free after it, also if this thread held it."""

class StatsFeed:
    """What changed in a manager's statistics, as a payload of vLLM's.

    `counter`, `gauge`, `histogram`: what a payload calls these types; `metrics`: the metric of each statistic."""

    def __init__(
        self, manager: Manager, counter: str, gauge: str, histogram: str, metrics: Mapping[str, str]
    ) -> None: ...
    def take(self, types: dict[str, str], values: dict[str, dict[tuple[str, ...], Any]]) -> None:
        """Adds to both what changed since the last call."""

class Node:
    """Host memory, its manager and its tiers. `tiers`: (place among all, a ``terrace_kv.tiers.Tier``)."""

    def __init__(
        self,
        config_json: str,
        identity: CacheIdentity,
        memory: HostMemory,
        tiers: list[tuple[int, Any]],
        answers: Sequence[Any],
        make_context: Callable[[int], Any] | None,
    ) -> None: ...
    @property
    def manager(self) -> Manager:
        """Valid for as long as anybody has it."""
    @property
    def metrics_address(self) -> str:
        """Host and port of its /metrics; empty if it has none."""
    def wait_for_progress(self, timeout_s: float) -> bool:
        """Until a tier may have something new; False after that time."""

class TierServer:
    """What a tier that serves peers may ask of the node, during one serve_external_requests()."""

    def begin_request(self) -> int:
        """Of a peer: its number, for the other calls. Ends with finish_request()."""
    def lookup(self, key: bytes, request: int) -> int:
        """0 miss, 1 hit, 2 pending, 3 retry."""
    def create_store_job(self, keys: Iterable[bytes], request: int) -> tuple[int, list[int]] | None:
        """Pins the chunks: (job, slots). None if one is not ready or the budget is used up."""
    def finish_request(self, request: int) -> None:
        """Its jobs may go on."""
    def should_yield(self) -> bool:
        """Whether the engine waits for the manager: the rest can be served next time."""

class BlockCopier:
    """Copies blocks of paged memory to and from the slots of a rank, in the background: by threads, or by a CUDA
    device."""

    @staticmethod
    def create(
        memory: HostMemory,
        rank: int,
        tensors: Sequence[tuple[int, int, int, int]],
        groups: Sequence[Sequence[tuple[int, int]]],
        blocks_per_chunk: int,
        threads: int,
        device: int = -1,
    ) -> BlockCopier:
        """`tensors`: (address, blocks, bytes from page to page, bytes of a page); `groups`: for each its (tensor,
        bytes of its pages); `device`: the CUDA device whose memory the tensors are, or -1."""
    def submit(
        self,
        job_id: int,
        is_store: bool,
        block_ids: Any,
        group_sizes: Sequence[int],
        first_blocks: Sequence[int],
        slots: Any,
        blocks_per_chunk: int,
        urgent: bool,
        after_event: int = 0,
    ) -> None:
        """Queues a job: `block_ids` (int32) group by group; `first_blocks` the place of each group's first block in
        its request; `after_event` the handle of a recorded CUDA event that the copies come after."""
    def take_finished(self) -> list[tuple[int, int, float, str | None]]:
        """(job, bytes, seconds, why it failed) of those that ended since the last call."""
    def wait_for(self, jobs: Sequence[int], timeout_s: float) -> bool:
        """Until these have ended; False if one has not after that time."""
