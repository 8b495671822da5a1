"""vLLM's own secondary tiers on Terrace's manager, without an engine: see engine/test_tiers.py for those in one."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engine.object_store import ObjectStore, plugin_libraries  # noqa: E402
from terrace_kv import TerraceError  # noqa: E402
from terrace_kv.vllm import TerraceOffloadingSpec  # noqa: E402
from test_vllm_plugin import caches, config_of, finish, keys  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    GPULoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob  # noqa: E402
from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: E402

HIT, MISS, HIT_PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
AT = [3, 4, 5, 6]
ELSEWHERE = [9, 10, 11, 12]


class World:
    """An engine's side of a manager with tiers: chunks 1 to 4 are the blocks AT."""

    def __init__(self, *tiers: dict[str, Any], events: bool = False) -> None:
        spec = TerraceOffloadingSpec(config_of({"secondary_tiers": list(tiers)}, events=events))
        self.memory = caches()
        self.worker = spec.get_worker(self.memory)
        self.manager = spec.get_manager()
        self._requests = 0
        self._jobs = 0

    def shutdown(self) -> None:
        self.manager.shutdown()
        self.worker.shutdown()

    def begin(self, **context: Any) -> ReqContext:
        self._requests += 1
        request = ReqContext(f"request-{self._requests}", **context)
        with self.manager.lock:
            self.manager.on_new_request(request)
        return request

    def end(self, request: ReqContext) -> None:
        with self.manager.lock:
            self.manager.on_request_finished(request)
        self.step()

    def step(self) -> None:
        with self.manager.lock:
            self.manager.on_schedule_end(ScheduleEndContext([], []))

    def lookup(self, request: ReqContext, wanted: list[bytes]) -> list[LookupResult]:
        """As it stands after a step."""
        with self.manager.lock:
            found = [self.manager.lookup(key, request) for key in wanted]
        self.step()
        return found

    def settle(self, request: ReqContext, wanted: list[bytes]) -> list[LookupResult]:
        """What look-ups say in the end."""
        found: list[LookupResult] = []

        def settled() -> bool:
            found[:] = self.lookup(request, wanted)
            return all(one in (HIT, MISS) for one in found)

        self.until(settled)
        return found

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline
            self.step()
            time.sleep(0.002)

    def store(self, wanted: list[bytes], blocks: list[int]) -> None:
        """In a request of its own, and until the tiers have taken it or not."""
        request = self.begin()
        with self.manager.lock:
            plan = self.manager.prepare_store(wanted, request)
        self._jobs += 1
        assert self.worker.submit_store(self._jobs, GPULoadStoreSpec(blocks, [len(blocks)], [0]), plan.store_spec)
        finish(self.worker, self._jobs)
        with self.manager.lock:
            self.manager.complete_store(set(wanted), request)
        self.end(request)
        self.until(lambda: self.tier()["cascade"]["jobs_in_flight"] == 0)

    def load(self, request: ReqContext, wanted: list[bytes], blocks: list[int]) -> None:
        with self.manager.lock:
            source = self.manager.prepare_load(wanted, request)
        self._jobs += 1
        assert self.worker.submit_load(self._jobs, source, GPULoadStoreSpec(blocks, [len(blocks)], [0]))
        finish(self.worker, self._jobs)
        with self.manager.lock:
            self.manager.complete_load(set(wanted), request)

    def reset(self) -> None:
        with self.manager.lock:
            self.manager.reset_cache()
            self.manager.on_reset_flushed()

    def tier(self, place: int = 0) -> dict[str, Any]:
        return self.stats()["tiers"][place]

    def stats(self) -> dict[str, Any]:
        return self.manager._core.stats()


@contextlib.contextmanager
def world_of(*tiers: dict[str, Any], **more: Any) -> Iterator[World]:
    world = World(*tiers, **more)
    try:
        yield world
    finally:
        world.shutdown()


class StoresNothing(SecondaryTierManager):
    """Has every chunk there is, and takes none: as one whose place can only be read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._results: list[JobResult] = []
        self.raises = False

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        return HIT

    def submit_store(self, job_metadata: TransferJob) -> None:
        if self.raises:
            raise RuntimeError("no")
        self._results.append(JobResult(job_metadata.job_id, success=False))

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._results.append(JobResult(job_metadata.job_id, success=True))

    def get_finished_jobs(self) -> list[JobResult]:
        results, self._results = self._results, []
        return results

    def on_new_request(self, req_context: ReqContext) -> Any:
        from vllm.v1.kv_offload.base import RequestOffloadingContext

        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        pass


STORES_NOTHING = {"type": "StoresNothing", "module_path": __name__}


def test_a_tier_that_cannot_store_goes_on_being_read() -> None:
    with world_of(STORES_NOTHING) as world:
        for number in range(5):
            world.store(keys(number + 1)[-1:], [number])
        assert world.tier()["cascade"]["failed_jobs"] == 5
        assert world.tier()["health"] == "up"
        assert world.settle(world.begin(), keys(9)[-1:]) == [HIT]


def test_a_tier_that_raises_is_left_alone() -> None:
    with world_of(STORES_NOTHING) as world:
        (tier,) = world.manager._tiers
        tier.tier.raises = True
        for number in range(3):
            assert world.tier()["health"] == "up"
            world.store(keys(number + 1)[-1:], [number])
        assert world.tier()["health"] == "down"
        assert world.settle(world.begin(), keys(9)[-1:]) == [MISS]


def test_vllms_example_tier() -> None:
    # It keeps keys and no bytes.
    with world_of({"type": "example", "custom_param": 7}) as world:
        world.store(keys(4), AT)
        assert world.tier()["cascade"]["chunks"] == 4
        world.reset()
        request = world.begin()
        assert world.lookup(request, keys(5)) == [HIT_PENDING] * 4 + [MISS]
        assert world.settle(request, keys(5)) == [HIT] * 4 + [MISS]
        world.load(request, keys(4), ELSEWHERE)
        assert world.manager.get_load_source(keys(1)[0], request) is CacheHitSource.HOST
        world.end(request)
        assert world.manager.config_info()[1] == {"example_info": 7, "tier": "1:example"}
        assert not world.manager.has_pending_work()


@pytest.fixture(scope="session")
def obj_plugin(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = plugin_libraries(tmp_path_factory.mktemp("libraries"))
    if directory is not None:
        ctypes.CDLL(str(next(directory.glob("*.so.1"))), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def store(obj_plugin: None) -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


def obj(store: ObjectStore, **more: Any) -> dict[str, Any]:
    return {"type": "obj", "store_config": store.config, "prefix": "some", **more}


def test_vllms_obj_tier_brings_what_it_stored(store: ObjectStore) -> None:
    with world_of(obj(store, enable_kv_events=True, locality="REMOTE"), events=True) as world:
        request = world.begin()
        assert world.settle(request, keys(4)) == [MISS] * 4
        world.end(request)
        world.store(keys(4), AT)
        assert len(store.objects) == 4
        said = [one for one in world.manager.take_events() if one.medium is Medium.STORAGE]
        assert [(set(one.keys), one.locality, one.removed) for one in said] == [(set(keys(4)), Locality.REMOTE, False)]
        world.reset()
        local = world.begin(load_tier_filter=TierFilter((TierMatcher(Medium.STORAGE, Locality.LOCAL),)))
        assert world.settle(local, keys(4)) == [MISS] * 4
        request = world.begin()
        assert world.settle(request, keys(5)) == [HIT] * 4 + [MISS]
        world.load(request, keys(4), ELSEWHERE)
        for tensor in world.memory.tensors:
            assert torch.equal(tensor.tensor[9:13], tensor.tensor[3:7])
        assert world.manager.get_load_source(keys(1)[0], request) is CacheHitSource.DISK
        world.end(request)
        stats = world.manager.get_stats().reduce()
        assert stats["vllm:kv_offload_tiering_write_bytes:('1:obj',)"] == world.tier()["cascade"]["bytes"] > 0
        assert stats["vllm:kv_offload_tiering_read_bytes:('1:obj',)"] == world.tier()["promotion"]["bytes"] > 0


def test_an_object_that_went_is_a_miss_and_is_asked_for_once(store: ObjectStore) -> None:
    with world_of(obj(store)) as world:
        world.store(keys(4), AT)
        world.reset()
        request = world.begin()
        store.on_get = lambda: store.objects.clear()
        assert world.settle(request, keys(4)) == [MISS] * 4
        for _ in range(5):
            assert world.lookup(request, keys(4)) == [MISS] * 4
        assert world.tier()["promotion"]["jobs"] == 1
        assert world.stats()["writing_chunks"] == 0
        assert world.tier()["health"] == "up"
        world.end(request)


def test_a_bucket_that_takes_nothing_is_read(store: ObjectStore) -> None:
    with world_of(obj(store)) as world:
        world.store(keys(4), AT)
        store.refuses_puts = True
        for number in range(5, 10):
            world.store(keys(number)[-1:], [number])
        assert (world.tier()["cascade"]["failed_jobs"], store.puts) == (5, 9)
        world.reset()
        request = world.begin()
        assert world.settle(request, keys(5)) == [HIT] * 4 + [MISS]
        world.end(request)


def test_a_reset_does_not_wait_for_objects_on_their_way(store: ObjectStore) -> None:
    with world_of(obj(store)) as world:
        world.store(keys(4), AT)
        world.reset()
        request = world.begin()
        with store.held():
            world.until(lambda: world.lookup(request, keys(4)) and world.tier()["promotion"]["jobs_in_flight"] == 1)
            world.reset()
            assert world.stats()["orphaned_slots"] == 4
        world.until(lambda: world.stats()["orphaned_slots"] == 0)
        world.end(request)
        request = world.begin()
        assert world.settle(request, keys(4)) == [HIT] * 4
        world.end(request)


def test_a_store_that_lets_nobody_in_stops_the_start(store: ObjectStore) -> None:
    store.refuses_all = True
    spec = TerraceOffloadingSpec(config_of({"secondary_tiers": [{"type": "example"}, obj(store)]}))
    worker = spec.get_worker(caches())
    with pytest.raises(TerraceError, match=r"secondary_tiers\[1\] .*connectivity probe failed"):
        spec.get_manager()
    worker.shutdown()
