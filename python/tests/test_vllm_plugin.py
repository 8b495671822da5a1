"""The plug-in's parts without an engine: spec, worker and manager together, and what an operator can get wrong."""

from __future__ import annotations

import inspect
import itertools
import os
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from terrace_kv import ConfigError, TerraceError  # noqa: E402
from terrace_kv.vllm import TerraceOffloadingSpec, version  # noqa: E402
from terrace_kv.vllm import spec as spec_module  # noqa: E402
from terrace_kv.vllm import tiers as tiers_module  # noqa: E402
from terrace_kv.vllm import worker as worker_module  # noqa: E402
from terrace_kv.vllm.config import Surroundings, read_extra_config  # noqa: E402
from terrace_kv.vllm.filters import sources_allowed  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager  # noqa: E402

PAGE = 256
BLOCKS = 16
_numbers = itertools.count()


def config_of(
    extra: dict[str, Any] | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    engine_id: str = "",
    per_chunk: int = 1,
    events: bool = False,
) -> OffloadingConfig:
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("a", "b"), 0),),
        worker_kv_bytes_per_block=2 * PAGE,
        enable_kv_cache_events=events,
        extra_config={"cpu_bytes_to_use": 64 << 10, **(extra or {})},
        engine_id=engine_id or f"test-{os.getpid()}-{next(_numbers)}",
        model=OffloadingModelConfig(name="test/model", dtype="float32", max_model_len=1024),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=per_chunk),
        parallel=OffloadingParallelConfig(rank, world, world, 1, 1, 1, 0, 1, None, False),
    )


def caches(seed: int = 0) -> CanonicalKVCaches:
    chosen = torch.Generator().manual_seed(seed)
    tensors = [
        CanonicalKVCacheTensor(torch.randint(-128, 127, (BLOCKS, PAGE), dtype=torch.int8, generator=chosen), PAGE)
        for _ in range(2)
    ]
    return CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(0, PAGE), CanonicalKVCacheRef(1, PAGE)]])


def keys(count: int) -> list[bytes]:
    return [make_offload_key(bytes([i + 1]) * 32, 0) for i in range(count)]


def finish(worker: Any, job: int) -> None:
    worker.wait({job})
    (result,) = worker.get_finished()
    assert (result.job_id, result.success) == (job, True)
    assert result.transfer_size > 0


def test_two_ranks_store_and_load_by_one_manager() -> None:
    engine_id = f"ranks-{os.getpid()}"
    specs = [TerraceOffloadingSpec(config_of(rank=rank, world=2, engine_id=engine_id, per_chunk=2)) for rank in (0, 1)]
    memory = [caches(rank) for rank in (0, 1)]
    workers = [spec.get_worker(cache) for spec, cache in zip(specs, memory)]
    manager = TerraceOffloadingSpec(config_of(world=2, engine_id=engine_id, per_chunk=2)).get_manager()
    request = ReqContext("r")
    with manager.lock:
        manager.on_new_request(request)
        assert [manager.lookup(key, request) for key in keys(2)] == [LookupResult.MISS] * 2
        plan = manager.prepare_store(keys(2), request)
        manager.on_schedule_end(ScheduleEndContext(["r"], []))
    assert plan.keys_to_store == keys(2)
    device = GPULoadStoreSpec([3, 4, 5, 6], [4], [0])
    for worker in workers:
        assert worker.submit_store(1, device, plan.store_spec)
        finish(worker, 1)
    stored = [[tensor.tensor[3:7].clone() for tensor in cache.tensors] for cache in memory]
    with manager.lock:
        manager.complete_store(set(keys(2)), request)
        manager.on_request_finished(request)
        again = ReqContext("again")
        manager.on_new_request(again)
        assert [manager.lookup(key, again) for key in keys(2)] == [LookupResult.HIT] * 2
        source = manager.prepare_load(keys(2), again)
        manager.on_schedule_end(ScheduleEndContext(["again"], []))
    # From the second block on, elsewhere, expedited.
    for rank, worker in enumerate(workers):
        assert worker.submit_load(2, source, GPULoadStoreSpec([9, 10, 11], [3], [1]), expedited=True)
        finish(worker, 2)
        for tensor, was in zip(memory[rank].tensors, stored[rank]):
            assert torch.equal(tensor.tensor[9:12], was[1:4])
    with manager.lock:
        manager.complete_load(set(keys(2)), again)
        manager.on_request_finished(again)
    stats = manager.get_stats().reduce()
    assert stats["vllm:kv_offload_cpu_cache_usage_perc"] == 0
    manager.shutdown()
    for worker in workers:
        worker.shutdown()


def test_usage_is_of_slots_that_are_written_or_read() -> None:
    spec = TerraceOffloadingSpec(config_of({"cpu_bytes_to_use": 4 * 4096}))
    worker = spec.get_worker(caches())
    manager = spec.get_manager()
    request = ReqContext("r")

    def usage() -> float:
        return manager.get_stats().reduce()["vllm:kv_offload_cpu_cache_usage_perc"]

    assert usage() == 0
    manager.prepare_store(keys(2), request)
    assert usage() == pytest.approx(0.5)
    manager.prepare_store(keys(4)[2:], request)
    assert usage() == pytest.approx(1)
    manager.complete_store(set(keys(2)), request)
    assert usage() == pytest.approx(0.5)
    manager.complete_store(set(keys(4)[2:]), request)
    assert usage() == 0
    manager.prepare_load(keys(1), request)
    assert usage() == pytest.approx(0.25)
    manager.shutdown()
    worker.shutdown()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_module, "CREATOR_TIMEOUT_S", 0.3)
    monkeypatch.setattr(spec_module, "JOIN_TIMEOUT_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_without_workers_says_so() -> None:
    with pytest.raises(TerraceError, match="no host memory of this engine's workers .engine_id alone"):
        TerraceOffloadingSpec(config_of(engine_id="alone")).get_manager()


@pytest.mark.usefixtures("impatient")
def test_a_worker_without_its_scheduler_says_so() -> None:
    worker = TerraceOffloadingSpec(config_of()).get_worker(caches())
    with pytest.raises(TerraceError, match="did not|not all|in time"):
        worker.submit_store(1, GPULoadStoreSpec([0], [1], [0]), GPULoadStoreSpec([0], [1], [0]))


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_does_not_come_is_named() -> None:
    engine_id = f"missing-{os.getpid()}"
    worker = TerraceOffloadingSpec(config_of(world=2, engine_id=engine_id)).get_worker(caches())
    with pytest.raises(TerraceError, match=engine_id):
        TerraceOffloadingSpec(config_of(world=2, engine_id=engine_id)).get_manager()
    worker.shutdown()


def test_two_engines_with_one_id() -> None:
    engine_id = f"twice-{os.getpid()}"
    first = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    with pytest.raises(TerraceError, match=engine_id):
        TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    manager = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_manager()
    # Once the first has all of its processes, the name is free.
    second = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    other = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_manager()
    with manager.lock:
        manager.complete_store(set(manager.prepare_store(keys(1), ReqContext("r")).keys_to_store), ReqContext("r"))
    assert manager.lookup(keys(1)[0], ReqContext("s")) is LookupResult.HIT
    assert other.lookup(keys(1)[0], ReqContext("s")) is LookupResult.MISS
    for one in (manager, other, first, second):
        one.shutdown()


def test_two_engines_of_two_ranks_with_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_id = f"twice-two-{os.getpid()}"

    def rank(number: int, instance: str) -> Any:
        monkeypatch.setattr(
            spec_module, "get_current_vllm_config_or_none", lambda: SimpleNamespace(instance_id=instance)
        )
        return TerraceOffloadingSpec(config_of(rank=number, world=2, engine_id=engine_id)).get_worker(caches(number))

    first = rank(0, "one")
    with pytest.raises(TerraceError, match=f"{engine_id}.* is rank 1 of another engine"):
        rank(1, "other")
    with pytest.raises(TerraceError, match=engine_id):
        rank(0, "other")
    second = rank(1, "one")
    manager = TerraceOffloadingSpec(config_of(world=2, engine_id=engine_id)).get_manager()
    for one in (manager, first, second):
        one.shutdown()


def test_host_memory_that_does_not_fit() -> None:
    with pytest.raises(TerraceError, match="GiB") as raised:
        TerraceOffloadingSpec(config_of({"cpu_bytes_to_use": "900GiB"})).get_worker(caches())
    assert raised.value.code == "resource exhausted"
    with pytest.raises(ConfigError, match="cpu_bytes_to_use"):
        TerraceOffloadingSpec(config_of({"cpu_bytes_to_use": 100}))


class BrokenTier(SecondaryTierManager):
    """Keeps nothing, and raises in the one method that its configuration names."""

    def __init__(self, *args: Any, broken: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.broken = broken
        self.asked: set[str] = set()
        self._results: list[JobResult] = []
        self._enter("__init__")

    def _enter(self, method: str) -> None:
        self.asked.add(method)
        if self.broken == method:
            raise KeyError(f"{method} is broken")

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        self._enter("lookup")
        return LookupResult.HIT if key == keys(6)[5] else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._enter("submit_store")
        self._results.append(JobResult(job_metadata.job_id, True))

    def submit_load(self, job_metadata: Any) -> None:
        self._enter("submit_load")
        self._results.append(JobResult(job_metadata.job_id, True))

    def get_finished_jobs(self) -> list[JobResult]:
        self._enter("get_finished_jobs")
        results, self._results = self._results, []
        return results

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._enter("on_new_request")
        return RequestOffloadingContext()

    def has_pending_work(self) -> bool:
        self._enter("has_pending_work")
        return False

    def take_events(self) -> Iterator[Any]:
        self._enter("take_events")
        yield from ()  # A generator: it raises while it is read.

    def touch(self, keys: Any, req_context: Any) -> None:
        self._enter("touch")

    def on_request_finished(self, req_context: Any) -> None:
        self._enter("on_request_finished")

    def serve_external_requests(self, parent: Any) -> None:
        self._enter("serve_external_requests")

    def on_schedule_end(self, context: Any) -> None:
        self._enter("on_schedule_end")

    def drain_jobs(self) -> None:
        self._enter("drain_jobs")

    def shutdown(self) -> None:
        self._enter("shutdown")

    def get_stats(self) -> None:
        self._enter("get_stats")

    def config_info(self) -> dict[str, Any]:
        self._enter("config_info")
        return {}

    @classmethod
    def _enter_class(cls, method: str, tier_config: dict[str, Any]) -> None:
        if tier_config["broken"] == method:
            raise KeyError(f"{method} is broken")

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        cls._enter_class("build_metric_definitions", extra_config)
        return {}

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        cls._enter_class("config_info_keys", tier_config)
        return ()


AT_THE_START = ("__init__", "config_info")
OF_THE_CLASS = ("build_metric_definitions", "config_info_keys")
METHODS = sorted(
    name
    for name, member in vars(SecondaryTierManager).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in AT_THE_START
)


def with_a_broken_tier(method: str) -> dict[str, Any]:
    broken = {"type": "BrokenTier", "module_path": __name__, "broken": method}
    return {"secondary_tiers": [{"type": "memory", "bytes": "1MiB"}, broken]}


@pytest.mark.parametrize("method", METHODS)
def test_a_tier_that_raises_is_a_fault_and_the_manager_goes_on(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    spec = TerraceOffloadingSpec(config_of(with_a_broken_tier(method)))
    memory = caches()
    worker = spec.get_worker(memory)
    manager = spec.get_manager()
    stored = [tensor.tensor[3:5].clone() for tensor in memory.tensors]

    def step(*names: str) -> None:
        manager.on_schedule_end(ScheduleEndContext(list(names), []))
        assert list(manager.take_events()) == []
        manager.has_pending_work()
        assert manager.get_stats() is not None

    # A store.
    first = ReqContext("first")
    manager.on_new_request(first)
    assert [manager.lookup(key, first) for key in keys(2)] == [LookupResult.MISS] * 2
    plan = manager.prepare_store(keys(2), first)
    step("first")
    worker.submit_store(1, GPULoadStoreSpec([3, 4], [2], [0]), plan.store_spec)
    finish(worker, 1)
    manager.complete_store(set(keys(2)), first)
    step()
    manager.on_request_finished(first)
    step()
    # A load, of a request that asks for what only the broken tier says it has, too.
    second = ReqContext("second")
    manager.on_new_request(second)
    manager.lookup(keys(6)[5], second)
    assert [manager.lookup(key, second) for key in keys(2)] == [LookupResult.HIT] * 2
    manager.touch(keys(2), second)
    source = manager.prepare_load(keys(2), second)
    step("second")
    worker.submit_load(2, source, GPULoadStoreSpec([9, 10], [2], [0]))
    finish(worker, 2)
    manager.complete_load(set(keys(2)), second)
    manager.on_request_finished(second)
    manager.reset_cache()
    manager.on_reset_flushed()
    for _ in range(3):
        step()
    for tensor, was in zip(memory.tensors, stored):
        assert torch.equal(tensor.tensor[9:11], was)
    faults = manager._core.stats()["tiers"][1]["faults"]
    manager.shutdown()
    worker.shutdown()

    said = capfd.readouterr().err
    if method == "shutdown":
        assert "Shutdown threw" in said and "shutdown is broken" in said
        assert "did not shut down in time" not in said
    elif method != "drain_jobs":  # Which the manager does not ask for by itself.
        assert faults > 0


@pytest.mark.parametrize("method", [*AT_THE_START, *OF_THE_CLASS])
def test_a_tier_that_raises_at_the_start_is_named(method: str) -> None:
    config = config_of(with_a_broken_tier(method))
    spec = TerraceOffloadingSpec(config)
    with pytest.raises(TerraceError, match=rf"secondary_tiers\[1\] .BrokenTier.: KeyError: .*{method} is broken"):
        if method in OF_THE_CLASS:
            getattr(TerraceOffloadingSpec, method)(config.extra_config)
        else:
            spec.get_worker(caches())
            spec.get_manager()


def test_faults_of_a_tier_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(tiers_module.logger, "error", lambda text, *args, **_: said.append(text % args))
    now = 1000.0
    monkeypatch.setattr(tiers_module.time, "monotonic", lambda: now)
    view = memoryview(bytearray(4096)).cast("B", (1, 4096))
    tier = tiers_module.VllmTier(BrokenTier(None, view, "BrokenTier", broken="touch"), 4)
    for _ in range(5):
        tier.touch(keys(1), ReqContext("r"))
    now += tiers_module.LOG_PERIOD_S
    tier.touch(keys(1), ReqContext("r"))
    assert len(said) == 2
    assert "secondary_tiers[4] (BrokenTier): touch raised KeyError: 'touch is broken' (0 more" in said[0]
    assert "(4 more" in said[1]


class FakeCopier:
    """Of a device that is not here: writes down what it is asked, and ends what the test says."""

    def __init__(self) -> None:
        self.created: tuple[tuple, dict[str, Any]] = ((), {})
        self.submitted: list[tuple[int, int]] = []
        self.ended: list[tuple] = []

    def create(self, *args: Any, **kwargs: Any) -> FakeCopier:
        self.created = (args, kwargs)
        return self

    def submit(self, job: int, *args: Any, after_event: int = 0) -> None:
        self.submitted.append((job, after_event))

    def take_finished(self) -> list[tuple]:
        ended, self.ended = self.ended, []
        return ended


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> FakeCopier:
    """The worker module with a device's copier, and a compute stream whose events are 100, 101, ..."""
    fake = FakeCopier()
    events = itertools.count(100)
    monkeypatch.setattr(worker_module, "_core", SimpleNamespace(BlockCopier=fake))
    monkeypatch.setattr(
        worker_module, "ComputeStream", lambda device: SimpleNamespace(record=lambda: next(events))
    )
    return fake


def on_device(kind: str, index: int = 0) -> CanonicalKVCaches:
    tensor = SimpleNamespace(
        device=torch.device(kind, index),
        shape=(BLOCKS, PAGE),
        data_ptr=lambda: 4096,
        stride=lambda axis: PAGE,
        element_size=lambda: 1,
    )
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, PAGE)], [[CanonicalKVCacheRef(0, PAGE)]])


def test_copies_of_a_device_come_after_what_was_computed(copier: FakeCopier) -> None:
    memory = SimpleNamespace(await_all=lambda: None)
    worker = worker_module.TerraceOffloadingWorker(memory, 0, on_device("cuda", 3), 1)
    args, kwargs = copier.created
    assert args[2] == [(4096, BLOCKS, PAGE, PAGE)]
    assert kwargs == {"device": 3}
    blocks = GPULoadStoreSpec([1], [1], [0])
    assert worker.submit_store(1, blocks, blocks)
    assert worker.submit_load(2, blocks, blocks)
    assert copier.submitted == [(1, 100), (2, 101)]  # Each its own point in time.


def test_a_copy_that_failed_is_reported_as_failed(copier: FakeCopier, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(worker_module.logger, "error", lambda text, *args: said.append(text % args))
    worker = worker_module.TerraceOffloadingWorker(SimpleNamespace(), 0, on_device("cuda"), 1)
    copier.ended = [(1, 0, 0.0, "cuMemcpyAsync on CUDA device 0: no"), (2, 64, 0.5, None)]
    failed, good = worker.get_finished()
    assert (failed.job_id, failed.success) == (1, False)
    assert (good.job_id, good.success, good.transfer_size, good.transfer_time) == (2, True, 64, 0.5)
    assert len(said) == 1 and "copy job 1" in said[0] and "cuMemcpyAsync on CUDA device 0: no" in said[0]


def test_tensors_of_other_devices_or_of_two_are_refused(copier: FakeCopier) -> None:
    two = on_device("cuda", 0)
    two.tensors.extend(on_device("cuda", 1).tensors)
    for tensors in (on_device("xpu"), two):
        with pytest.raises(ValueError, match="of one CUDA device"):
            worker_module.TerraceOffloadingWorker(SimpleNamespace(), 0, tensors, 1)


@pytest.mark.parametrize(
    ("device", "chosen", "can", "ours", "warned"),
    [
        ("cpu", None, False, True, False),
        ("cuda", None, True, False, False),
        ("cuda", "vllm", True, False, False),
        ("cuda", "terrace", True, True, False),
        ("cuda", "terrace", False, False, True),
        ("xpu", "terrace", False, False, True),
    ],
)
def test_whose_worker_copies(
    monkeypatch: pytest.MonkeyPatch, device: str, chosen: str | None, can: bool, ours: bool, warned: bool
) -> None:
    def make_ours(*_: Any) -> None:
        if device != "cpu" and not can:
            raise TerraceError("there is no such device")
        made.append("terrace")

    said: list[str] = []
    monkeypatch.setattr(spec_module.logger, "warning", lambda text, *args: said.append(text % args))
    made: list[str] = []
    monkeypatch.setattr(worker_module, "TerraceOffloadingWorker", make_ours)
    monkeypatch.setattr("terrace_kv.vllm.device_worker.make_device_worker", lambda *args: made.append("vllm"))
    spec = TerraceOffloadingSpec(config_of({"device_copies": chosen} if chosen else None))
    spec.get_worker(caches() if device == "cpu" else on_device(device))
    assert made == ["terrace" if ours else "vllm"]
    assert any("device_copies" in line for line in said) == warned


def test_a_worker_of_the_cpu_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise TerraceError("pages do not fit")

    monkeypatch.setattr(worker_module, "TerraceOffloadingWorker", fail)
    with pytest.raises(TerraceError, match="pages do not fit"):
        TerraceOffloadingSpec(config_of(None)).get_worker(caches())


def test_device_copies_is_one_of_two_words() -> None:
    with pytest.raises(ConfigError, match="device_copies: must be one of vllm, terrace, is 'cuda'"):
        read({"cpu_bytes_to_use": "1GiB", "device_copies": "cuda"})


def read(extra: dict[str, Any], **surroundings: Any) -> Any:
    return read_extra_config(
        extra,
        enable_kv_events=False,
        surroundings=Surroundings(fs_directory=lambda root: f"{root}/of-the-model_r0", **surroundings),
    )


def peer_of(tier: dict[str, Any], **surroundings: Any) -> dict[str, Any]:
    return read({"cpu_bytes_to_use": "1GiB", "secondary_tiers": [tier]}, **surroundings).node["secondary_tiers"][0]


@pytest.mark.parametrize("index", [0, 3])
def test_each_engine_of_a_data_parallel_group_has_ports_of_its_own(index: int) -> None:
    where = {"data_parallel_index": index, "side_channel": ("localhost", 4000)}
    assert peer_of({"type": "p2p", "port": 5000}, **where)["port"] == 5000 + index
    assert peer_of({"type": "p2p"}, **where)["port"] == 4000 + index
    own = peer_of({"type": "peer", "port": 6000, "data_port": 7000}, **where)
    assert (own["port"], own["data_port"]) == (6000 + index, 7000 + index)
    assert peer_of({"type": "peer"}, **where).get("port", 5710) == 5710 + index
    assert peer_of({"type": "peer", "port": 0}, **where)["port"] == 0, "any that is free"
    out = read({"cpu_bytes_to_use": "1GiB", "metrics_listen": "127.0.0.1:9400"}, **where)
    assert out.node["metrics_listen"] == f"127.0.0.1:{9400 + index}"


def test_without_a_control_thread_an_engine_with_peers_goes_on_stepping() -> None:
    peer = {"secondary_tiers": [{"type": "p2p"}]}
    for extra, by_steps in (
        ({**peer, "tier_poll_interval_s": 0}, True),
        ({**peer, "tier_poll_interval_s": 0.001}, False),
        (peer, False),
        ({"tier_poll_interval_s": 0}, False),
    ):
        assert read({"cpu_bytes_to_use": "1GiB", **extra}).served_by_steps == by_steps, extra
    tiers = [{"type": "peer", "port": 0}]
    for interval, goes_on in ((0, True), (0.001, False)):
        spec = TerraceOffloadingSpec(config_of({"tier_poll_interval_s": interval, "secondary_tiers": tiers}))
        spec.get_worker(caches())
        manager = spec.get_manager()
        assert manager.has_pending_work() == goes_on
        manager.shutdown()


def test_vllms_side_channel_is_where_p2p_listens() -> None:
    where = {"side_channel": ("127.0.0.3", 4000)}
    for tier, host, port in (({}, "127.0.0.3", 4000), ({"host": "127.0.0.2", "port": 5}, "127.0.0.2", 5)):
        peer = peer_of({"type": "p2p", **tier}, **where)
        assert (peer["host"], peer["port"]) == (host, port)
    assert "host" not in peer_of({"type": "p2p"})


def test_vllms_default_of_a_minute_for_parked_chunks_is_taken() -> None:
    out = read({"cpu_bytes_to_use": "1GiB", "secondary_tiers": [{"type": "p2p", "unbound_store_timeout_s": 60}]})
    assert out.node["secondary_tiers"][0]["park_timeout_ms"] == 55_000
    assert "secondary_tiers[0].unbound_store_timeout_s" in out.warnings[0]


@pytest.mark.parametrize(("other", "refused"), [("1", False), ("2", True), (None, True)])
def test_processes_of_another_hash_seed_are_refused(
    monkeypatch: pytest.MonkeyPatch, other: str | None, refused: bool
) -> None:
    """An algorithm that draws its seed from PYTHONHASHSEED gives the same tokens other keys."""
    engine_id = f"seeds-{os.getpid()}-{other}"
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    worker = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    if other is None:
        monkeypatch.delenv("PYTHONHASHSEED")
    else:
        monkeypatch.setenv("PYTHONHASHSEED", other)
    spec = TerraceOffloadingSpec(config_of(engine_id=engine_id))
    if refused:
        with pytest.raises(TerraceError, match="identity") as raised:
            spec.get_manager()
        assert raised.value.code == "incompatible"
    else:
        spec.get_manager().shutdown()
    worker.shutdown()


def test_a_word_for_backpressure_is_every_native_tiers() -> None:
    tiers = [{"type": "fs", "root_dir": "/a"}, {"type": "fs", "root_dir": "/b", "backpressure": "throttle"}]
    out = read({"cpu_bytes_to_use": "1GiB", "backpressure": "off", "secondary_tiers": [*tiers, {"type": "Mine"}]})
    assert [tier["backpressure"] for tier in out.node["secondary_tiers"]] == ["off", "throttle"]
    assert "backpressure" not in out.python_tiers[0].config


def test_wrong_kinds_of_values_are_faults_like_others() -> None:
    def no_class(tier: dict[str, Any]) -> type:
        raise ValueError("no such tier")

    with pytest.raises(ConfigError) as raised:
        read(
            {
                "cpu_bytes_to_use": "1GiB",
                "backpressure": "dorp",
                "secondary_tiers": [
                    {"type": "fs", "root_dir": "/a", "backpressure": {"high_water_s": "fast"}},
                    {"type": "fs", "root_dir": "/b", "backpressure": {"policy_cls": {}}},
                    {"type": "fs", "root_dir": "/c", "backpressure": ["drop"]},
                    {"type": "p2p", "unbound_store_timeout_s": None},
                    {"type": "flie", "root_dir": "/d"},
                    {"type": "fs", "root_dir": "/e", "layout": "terrace"},
                ],
            },
            find_class=no_class,
        )
    said = str(raised.value)
    for words in (
        "\nbackpressure: must be an object, as vLLM has it, or one of off, drop, throttle; is 'dorp'",
        "secondary_tiers[0].backpressure.high_water_s: must be a number of seconds, is 'fast'",
        "secondary_tiers[1].backpressure.policy_cls: {} is not one that native tiers have",
        "secondary_tiers[2].backpressure: must be an object",
        "secondary_tiers[3].unbound_store_timeout_s: must be a number of seconds, is None",
        "secondary_tiers[4].type: 'flie' is none of Terrace's (file, fs, memory, p2p, peer, plugin)",
        'secondary_tiers[5].layout: type "fs" is vLLM\'s directory',
    ):
        assert words in said, words


def test_keys_of_vllms_own_tiers_are_understood() -> None:
    out = read(
        {
            "spec_name": "TerraceOffloadingSpec",
            "cpu_bytes_to_use": "1GiB",
            "backpressure": {"backpressure_cls": "EMABackpressureDetector", "policy_cls": "ThrottledDropPolicy", "alpha": 0.2},
            "secondary_tiers": [
                {"type": "fs", "root_dir": "/cache", "locality": "REMOTE", "backpressure": {"high_water_s": 0.05}},
                {"type": "Mine", "module_path": "my.tiers", "colour": "red"},
                {"type": "p2p", "host": "127.0.0.1", "port": 5000, "backends": ["UCX"], "unbound_store_timeout_s": 20},
            ],
        }
    )
    fs, peer = out.node["secondary_tiers"]
    assert (fs["type"], fs["layout"], fs["root_dir"]) == ("file", "vllm", "/cache/of-the-model_r0")
    assert (fs["backpressure"], fs["backpressure_ms_per_mib"]) == ("throttle", 50)
    assert (peer["type"], peer["port"], peer["park_timeout_ms"]) == ("peer", 5000, 20_000)
    assert [(tier.place, tier.config["colour"]) for tier in out.python_tiers] == [(1, "red")]
    said = "\n".join(out.warnings)
    for path in ("secondary_tiers[0].locality", "secondary_tiers[0].backpressure.alpha", "secondary_tiers[2].backends"):
        assert path in said


def test_every_fault_is_named_at_once_with_its_place() -> None:
    with pytest.raises(ConfigError) as raised:
        read(
            {
                "cpu_bytes_to_use": 0,
                "canonical_layout": True,
                "tokens_per_chunk": 16,
                "copy_threads": "many",
                "evction_policy": "lru",
                "secondary_tiers": [{"type": "Mine", "module_path": "my.tiers"}, {"type": "file"}, "fs"],
            }
        )
    said = str(raised.value)
    for words in (
        "canonical_layout: is not supported",
        "tokens_per_chunk: follows from",
        "copy_threads: must be a number from 1 to 64",
        "evction_policy: is not a known key",
        "cpu_bytes_to_use: ",
        "secondary_tiers[1].root_dir: is missing",
        "secondary_tiers[2]: must be an object",
    ):
        assert words in said, words


def test_values_that_json_does_not_have_are_faults_with_their_keys() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(ConfigError) as raised:
        read(
            {
                "cpu_bytes_to_use": 1 << 20,
                "control_thread": loop,
                "revision": "\ud800",
                "metrics_listen": {1, 2},
                "backpressure": {"alpha": 1, 5: 2},
                "secondary_tiers": [
                    {"type": "Mine", "module_path": "my.tiers", "colour": object()},
                    {"type": "file", "root_dir": pathlib.Path("/cache"), "n_read_threads": float("nan")},
                    {"type": "peer", "peers": ["\ud800"]},
                ],
            }
        )
    said = str(raised.value)
    for words in (
        "\ncontrol_thread.again.again.",
        "\nrevision: must be text",
        "\nmetrics_listen: must be a value that JSON has, is {1, 2}",
        "\nsecondary_tiers[1].root_dir: must be a value that JSON has, is PosixPath('/cache')",
        "\nsecondary_tiers[1].n_read_threads: must be a value that JSON has, is nan",
        "\nsecondary_tiers[2].peers[0]: holds half of a character, is '\\ud800'",
    ):
        assert words in said, (words, said)


def test_a_key_that_looks_like_a_tiers_place_is_named_as_it_is() -> None:
    with pytest.raises(ConfigError) as raised:
        read(
            {
                "cpu_bytes_to_use": 1 << 20,
                "secondary_tiers[0].type": "fs",
                "secondary_tiers": [{"type": "Mine"}, {"type": "memory", "bytes": 1, "secondary_tiers[5]": 1}],
            }
        )
    said = str(raised.value)
    for words in ('["secondary_tiers[0].type"]: is not', 'secondary_tiers[1]["secondary_tiers[5]"]: is not'):
        assert words in said, (words, said)


@pytest.mark.parametrize(
    "params",
    [
        {"remote_kv_source": "10.0.0.7:5710"},
        {"remote_prefiller": {}},
        {"remote_kv_source": {"kv_request_id": "r", "remote_host": "\ud800", "remote_port": 1}},
        {"remote_kv_source": {"kv_request_id": "r", "remote_host": "h", "remote_port": float("nan")}},
        {"remote_decoder": {"kv_request_id": {1}}},
        ["remote_kv_source"],
    ],
)
def test_what_a_client_writes_wrong_costs_the_engine_nothing(params: Any) -> None:
    """What on_new_request() raises ends vLLM's core, for all clients."""
    engine_id = f"route-{os.getpid()}-{next(_numbers)}"
    worker = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    manager = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_manager()
    request = ReqContext(req_id="r", kv_transfer_params=params)
    assert manager.on_new_request(request) == RequestOffloadingContext()
    assert manager.lookup(make_offload_key(b"h" * 32, 0), request) is LookupResult.MISS
    manager.on_request_finished(request)
    manager.shutdown()
    worker.shutdown()


@pytest.mark.parametrize("name", ["\U0001f600" * 40, "\ud800", "x" * 200])
def test_an_engine_id_may_be_any_text(name: str) -> None:
    engine_id = f"{name}{os.getpid()}"
    worker = TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_worker(caches())
    TerraceOffloadingSpec(config_of(engine_id=engine_id)).get_manager().shutdown()
    worker.shutdown()


def test_a_users_config_is_not_changed() -> None:
    extra = {"cpu_bytes_to_use": 1 << 20, "secondary_tiers": [{"type": "p2p", "num_threads": 2}]}
    read(extra)
    assert extra == {"cpu_bytes_to_use": 1 << 20, "secondary_tiers": [{"type": "p2p", "num_threads": 2}]}


def test_another_vllm_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.34.1")
    with pytest.raises(ImportError) as raised:
        version.check_version()
    assert "\n" not in str(raised.value)
    for words in ("0.33.x", "0.34.1", "install one of those"):
        assert words in str(raised.value)


@pytest.fixture(params=[(None, 0b111111), (Medium.STORAGE, 0b101100), (Medium.CPU, 0b110011)])
def medium_and_sources(request: pytest.FixtureRequest) -> Iterator[tuple[Medium | None, int]]:
    yield request.param


def test_filters_name_the_sources(medium_and_sources: tuple[Medium | None, int]) -> None:
    medium, sources = medium_and_sources
    assert sources_allowed(TierFilter((TierMatcher(medium=medium),))) == sources


def test_a_filter_by_place() -> None:
    assert sources_allowed(TierFilter((TierMatcher(Medium.CPU, Locality.REMOTE),))) == 0b110000
    assert sources_allowed(TierFilter.ALL) & 0b111111 == 0b111111
