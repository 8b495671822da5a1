"""The package without vLLM: configuration, lock, completions, resets, tiers in Python, events, memory, copies.

    PYTHONPATH=python python -m pytest python/tests/test_core.py
"""

from __future__ import annotations

import array
import ctypes
import multiprocessing
import operator
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import pytest
import terrace_kv
from terrace_kv import ChunkGone, ConfigError, LookupResult, Node, TerraceError, Tier, key_of, keys_of

CHUNK_BYTES = 4096
PATIENCE_S = 30.0


def identity(chunk_bytes: int = CHUNK_BYTES, model: str = "test") -> terrace_kv.CacheIdentity:
    return terrace_kv.CacheIdentity(
        model=model,
        revision="1",
        dtype="int8",
        layout="none",
        layout_version=1,
        tokens_per_chunk=16,
        chunk_bytes=chunk_bytes,
        shard_index=0,
        shard_count=1,
        engine="tests",
    )


def make_node(slots: int = 4, tiers: tuple[Tier, ...] = (), **config: Any) -> Node:
    config = {
        "cpu_bytes_to_use": slots * CHUNK_BYTES,
        "prefault_threads": 0,
        "tier_poll_interval_s": 0,
        "promoting_slots_percent": 100,
        "cascading_slots_percent": 100,
        **config,
    }
    return Node(config, identity(), tiers=list(enumerate(tiers)))


def keys(*numbers: int, group: int = 0) -> list[bytes]:
    return keys_of([f"chunk {number}".encode() for number in numbers], group)


def store(manager: Any, chunks: list[bytes], request: str, **how: Any) -> tuple[list[bytes], list[int], list[bytes]]:
    plan = manager.prepare_store(chunks, request, **how)
    assert plan is not None
    manager.complete_store(plan[0], request)
    return plan


class DictTier(Tier):
    """Remembers keys, ends each job at once, and notes what it is told."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()
        self.results: list[tuple] = []
        self.told: list[tuple[str, Any]] = []
        self.jobs: list[tuple[int, list[bytes], list[int], bool]] = []
        self.answers_jobs = True

    def lookup(self, key: bytes, request: Any) -> int:
        return terrace_kv.tiers.HIT if key in self.kept else terrace_kv.tiers.MISS

    def submit(self, job_id: int, keys: list[bytes], slots: list[int], is_load: bool, request: Any) -> None:
        self.jobs.append((job_id, keys, slots, is_load))
        self.told.append(("load" if is_load else "store", request))
        if not is_load:
            self.kept.update(keys)
        if self.answers_jobs:
            self.results.append((job_id, True, None, len(keys) * CHUNK_BYTES, None))

    def take_finished(self) -> list[tuple]:
        results, self.results = self.results, []
        return results

    def on_new_request(self, request: Any) -> bool:
        self.told.append(("new", request))
        return False

    def on_request_finished(self, request: Any) -> None:
        self.told.append(("finished", request))

    def on_schedule_end(self, step: Any) -> None:
        self.told.append(("step", step))


# Configuration.


def test_every_fault_of_a_configuration_is_said_at_once_with_its_key():
    with pytest.raises(ConfigError) as raised:
        terrace_kv.check_config({"cpu_bytes_to_use": 0, "eviction_policy": "mru", "colour": "blue"})
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    for key in ("cpu_bytes_to_use", "eviction_policy", "colour"):
        assert any(key in line for line in lines)
    assert raised.value.code == "invalid argument"
    assert isinstance(raised.value, ValueError)


def test_memory_that_holds_no_chunk_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match="cpu_bytes_to_use|chunk"):
        Node({"cpu_bytes_to_use": 100}, identity())


def test_an_identity_names_the_field_that_is_missing_or_unknown():
    with pytest.raises(ConfigError, match="dtype"):
        terrace_kv.CacheIdentity(model="m")
    with pytest.raises(TypeError, match="colour"):
        terrace_kv.CacheIdentity(colour="blue")


def test_a_key_is_a_hash_and_a_group():
    with make_node() as node:
        with pytest.raises(ValueError, match="4 bytes"):
            node.manager.lookup(b"1234", "r")
        with pytest.raises(TypeError, match="bytes"):
            node.manager.lookup("text", "r")
    assert key_of(b"h", 1) == b"h\0\0\0\1"
    with pytest.raises(ValueError):
        key_of(b"")
    with pytest.raises(ValueError):
        key_of(b"x" * 33)


# The lock.


def test_the_lock_is_not_re_entrant_and_still_held_after_the_mistake():
    with make_node() as node:
        manager = node.manager
        with manager.lock:
            with pytest.raises(RuntimeError, match="not re-entrant"), manager.lock:
                pass
            assert manager.holds_lock()
            manager.lookup(keys(1)[0], "r")  # Of a thread that holds it.
        assert not manager.holds_lock()


def test_the_lock_is_free_after_an_exception():
    with make_node() as node:
        with pytest.raises(KeyError), node.manager.lock:
            raise KeyError("inside")
        with node.manager.lock:
            pass
        # One that a call raised under the lock of its own leaves that free, too.
        with pytest.raises(ChunkGone):
            node.manager.prepare_load(keys(1), "r")
        with node.manager.lock:
            pass


def test_a_node_ends_also_under_its_lock():
    tier = DictTier()
    node = make_node(tiers=(tier,))
    lock = node.manager.lock
    assert lock.acquire()
    with pytest.raises(RuntimeError, match="without holding the lock"):
        node.drain(1.0)
    node.shutdown()
    assert not node.manager.holds_lock()
    # And when the last reference goes.
    node = make_node()
    assert node.manager.lock.acquire()
    del node


def test_only_who_holds_the_lock_gives_it_back():
    with make_node() as node:
        lock = node.manager.lock
        with pytest.raises(RuntimeError, match="does not hold"):
            lock.__exit__(None, None, None)


def test_the_lock_can_be_tried_for():
    with make_node() as node:
        lock = node.manager.lock
        assert lock.acquire(timeout=0.5)
        with pytest.raises(RuntimeError, match="not re-entrant"):
            lock.acquire(blocking=False)
        answers: list[bool] = []

        def other() -> None:
            answers.append(lock.acquire(blocking=False))
            answers.append(lock.acquire(timeout=0.01))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(PATIENCE_S)
        assert answers == [False, False]
        lock.release()
        assert lock.acquire(blocking=False)
        lock.release()


def test_a_second_thread_waits_for_the_lock_and_the_interpreter_goes_on():
    with make_node() as node:
        order: list[str] = []
        waits = threading.Event()

        def other() -> None:
            waits.set()
            with node.manager.lock:
                order.append("other")

        with node.manager.lock:
            thread = threading.Thread(target=other)
            thread.start()
            assert waits.wait(PATIENCE_S)
            time.sleep(0.02)  # Long enough for a lock that does not exclude to show it.
            order.append("first")
        thread.join(PATIENCE_S)
        assert order == ["first", "other"]


# Completions.


def test_a_chunk_that_is_named_twice_is_completed_once():
    with make_node(enable_kv_events=True) as node:
        manager = node.manager
        [one, two] = keys(1, 2)
        manager.prepare_store([one], "a")
        manager.prepare_store([two], "b")
        manager.complete_store([two, one, two, one], "a")
        assert manager.stats()["stored_chunks"] == 2
        assert manager.take_events() == [("stored", [two, one])]


def test_keys_that_change_during_the_call_are_those_it_began_with():
    class Changer(DictTier):
        def on_new_request(self, request: Any) -> bool:
            offered.clear()
            return False

    offered = keys(1, 2)
    with make_node(tiers=(Changer(),)) as node:
        kept, _, _ = store(node.manager, offered, "r")
        assert kept == keys(1, 2) and not offered


def test_a_request_whose_name_is_none_is_known_like_others():
    class Nameless:
        req_id = None

    with make_node() as node:
        manager = node.manager
        store(manager, keys(1), "r")
        manager.prepare_load(keys(1), Nameless())
        manager.on_request_finished("r")
        manager.complete_load(keys(1), Nameless())
        assert manager.stats()["pinned_chunks"] == 0


def test_completions_of_what_was_not_prepared_are_passed_over():
    with make_node() as node:
        manager = node.manager
        store(manager, keys(1, 2), "r")
        manager.complete_load(keys(1, 7), "r")
        manager.complete_store(keys(1, 7), "r", False)
        manager.complete_store(keys(1), "nobody")
        manager.on_request_finished("nobody")
        assert manager.lookup(keys(1)[0], "r") is LookupResult.HIT
        assert manager.stats()["pinned_chunks"] == 0


def test_a_load_is_unpinned_once_for_each_time_it_was_prepared():
    with make_node() as node:
        manager = node.manager
        store(manager, keys(1), "r")
        assert manager.prepare_load(keys(1), "a") == manager.prepare_load(keys(1), "a")
        for pinned in (1, 0, 0):
            manager.complete_load(keys(1), "a")
            assert manager.stats()["pinned_chunks"] == pinned


def test_a_load_of_a_request_that_has_finished_is_unpinned_when_it_ends():
    with make_node() as node:
        manager = node.manager
        store(manager, keys(1), "r")
        manager.prepare_load(keys(1), "a")
        manager.on_request_finished("a")
        manager.prepare_load(keys(1), "a")  # Another request of that name.
        manager.complete_load(keys(1), "a")
        manager.complete_load(keys(1), "a")
        assert manager.stats()["pinned_chunks"] == 0
        manager.on_request_finished("a")


def test_a_failed_store_frees_its_slots_and_leaves_what_was_there():
    with make_node(slots=2) as node:
        manager = node.manager
        store(manager, keys(1), "r")
        assert manager.prepare_store(keys(1, 2), "r")[0] == keys(2)
        assert manager.prepare_store(keys(3, 4), "s") is None
        manager.complete_store(keys(1, 2), "r", False)
        assert manager.lookup(keys(1)[0], "r") is LookupResult.HIT
        assert manager.lookup(keys(2)[0], "r") is LookupResult.MISS
        assert manager.prepare_store(keys(3), "s") is not None


def test_a_prepared_load_of_a_chunk_that_is_gone_pins_nothing():
    with make_node() as node:
        store(node.manager, keys(1), "r")
        with pytest.raises(ChunkGone, match="not in host memory any more"):
            node.manager.prepare_load(keys(1, 2), "r")
        assert node.manager.stats()["pinned_chunks"] == 0


# Order of eviction.


def test_late_chunks_of_a_prefix_go_first_in_whatever_order_they_were_offered():
    with make_node(slots=4) as node:
        manager = node.manager
        for number in (1, 4, 2, 3):
            store(manager, keys(number), "r", ends=[16 * number])
        for number in (11, 12, 13):
            evicted = store(manager, keys(number), f"other {number}", ends=[16])[2]
            assert evicted == keys(15 - number)
            manager.prepare_load(keys(number), f"other {number}")


def test_groups_lose_their_tails_together():
    with make_node(slots=6) as node:
        manager = node.manager
        offer = keys(1, 2, 3) + keys(1, 2, 3, group=1)
        kept, slots, _ = store(manager, offer, "r", ends=[16, 32, 48] * 2)
        assert kept == offer and len(set(slots)) == 6
        assert set(store(manager, keys(11, 12), "s", ends=[16, 32])[2]) == set(keys(3) + keys(3, group=1))


def test_a_load_by_groups_keeps_the_tails_together_too():
    with make_node(slots=6) as node:
        manager = node.manager
        offer = keys(1, 2, 3) + keys(1, 2, 3, group=1)
        store(manager, offer, "seed")
        manager.on_request_finished("seed")
        manager.prepare_load(offer, "r", [16, 32, 48] * 2)
        manager.complete_load(offer, "r")
        assert set(store(manager, keys(11, 12), "s")[2]) == set(keys(3) + keys(3, group=1))


def test_unrelated_chunks_go_in_the_order_in_which_they_came():
    with make_node(slots=3) as node:
        store(node.manager, keys(1, 2, 3), "r", is_sequence=False)
        assert store(node.manager, keys(4), "s", is_sequence=False)[2] == keys(1)


def test_what_is_touched_is_recent_whoever_stored_it():
    with make_node(slots=3) as node:
        store(node.manager, keys(1, 2, 3), "r", is_sequence=False)
        node.manager.touch(keys(1, 2), "r")
        assert store(node.manager, keys(4), "s", is_sequence=False)[2] == keys(3)
        assert store(node.manager, keys(5), "s", is_sequence=False)[2] == keys(2)


def test_ends_may_be_given_by_key():
    for number in (1, 2):
        with make_node() as node:
            manager = node.manager
            manager.on_new_request("r")
            store(manager, keys(3, 1, 2), "r", ends=dict(zip(keys(1, 2, 3, 7), (16, 32, 48, 64))))
            manager.on_request_finished("r")
            other = store(manager, keys(*range(11, 11 + number + 1)), "other", ends=[16, 32, 48][: number + 1])
            assert set(other[2]) == set(keys(3, 2)[:number])  # The deepest go first, whatever the order of the offer.


def test_keys_of_which_one_has_no_end_are_no_sequence():
    with make_node(slots=3) as node:
        store(node.manager, keys(1, 2, 3), "r", ends=dict(zip(keys(1, 3), (16, 48))))
        assert store(node.manager, keys(4), "s", ends={})[2] == keys(1)


def test_slots_may_be_packed():
    with make_node() as node:
        manager = node.manager
        _, packed, _ = manager.prepare_store(keys(1, 2, 3), "r", packed=True)
        manager.complete_store(keys(1, 2, 3), "r")
        slots = array.array("i", packed)
        assert sorted(slots) == [0, 1, 2]
        expected = [slots[2], slots[0]]
        assert list(array.array("i", manager.prepare_load(keys(3, 1), "s", packed=True))) == expected
        assert manager.prepare_load(keys(3, 1), "s") == expected


def test_a_wrong_call_of_lookup_raises():
    with make_node() as node:
        with pytest.raises(TypeError, match="lookup"):
            node.manager.lookup(keys(1)[0])
        with pytest.raises(TypeError, match="bytes"):
            node.manager.lookup("chunk 1", "r")
        with pytest.raises(AttributeError, match="req_id"):
            node.manager.lookup(keys(1)[0], object())


def test_there_are_as_many_ends_as_keys():
    with make_node() as node:
        with pytest.raises(ValueError, match="as many ends as keys"):
            node.manager.prepare_store(keys(1, 2), "r", ends=[16])
        with pytest.raises(ValueError, match="as many ends as keys"):
            node.manager.prepare_load(keys(1, 2), "r", [16])


# Resets.


def test_a_reset_forgets_at_once_and_keeps_slots_that_are_copied_until_they_are_not():
    with make_node(slots=3) as node:
        manager = node.manager
        store(manager, keys(1), "r")
        assert manager.prepare_load(keys(1), "r") == [0]
        assert manager.prepare_store(keys(2), "r")[1] == [1]
        assert manager.reset_cache() == (2, 2)
        for key in keys(1, 2):
            assert manager.lookup(key, "r") is LookupResult.MISS
        assert manager.stats()["orphaned_slots"] == 2
        assert manager.prepare_store(keys(1), "r")[1] == [2]
        assert manager.prepare_store(keys(2), "r") is None
        # Completions of before the reset do nothing to the chunks of after it.
        manager.complete_load(keys(1), "r")
        manager.complete_store(keys(2), "r")
        assert manager.stats()["orphaned_slots"] == 2
        assert manager.on_reset_flushed() == 2
        assert manager.on_reset_flushed() == 0
        assert manager.stats()["orphaned_slots"] == 0
        manager.complete_store(keys(1), "r")
        assert manager.lookup(keys(1)[0], "r") is LookupResult.HIT
        assert len(manager.prepare_store(keys(2, 3), "r")[1]) == 2


def test_tiers_hear_at_a_reset_of_the_end_of_requests_that_waited_for_their_stores():
    tier = DictTier()
    with make_node(tiers=(tier,)) as node:
        manager = node.manager
        manager.prepare_store(keys(1), "r")
        manager.on_request_finished("r")
        assert ("finished", "r") not in tier.told
        manager.reset_cache()
        assert tier.told.count(("finished", "r")) == 1
        manager.complete_store(keys(1), "r")
        assert manager.on_reset_flushed() == 1
        assert tier.told.count(("finished", "r")) == 1
        assert not tier.jobs


# Tiers in Python.


def promote(node: Node, chunks: list[bytes], request: str) -> list[LookupResult]:
    for chunk in chunks:
        assert node.manager.lookup(chunk, request) is LookupResult.HIT_PENDING
    node.manager.on_schedule_end()
    node.manager.on_schedule_end()
    return [node.manager.lookup(chunk, request) for chunk in chunks]


def test_stores_go_to_the_tier_and_come_back_from_it():
    tier = DictTier()
    with make_node(tiers=(tier,)) as node:
        manager = node.manager
        manager.on_new_request("r")
        store(manager, keys(1, 2), "r")
        manager.on_schedule_end("the step")
        assert tier.kept == set(keys(1, 2))
        manager.reset_cache()
        assert promote(node, keys(1, 2), "s") == [LookupResult.HIT] * 2
        assert [job[1] for job in tier.jobs if job[3]] == [keys(1, 2)]  # One job for a request.
        assert manager.get_load_source(keys(1)[0], "s") == "other"
        assert manager.get_load_source(keys(1)[0], "r") == "host"
        assert ("step", "the step") in tier.told
        [stats] = manager.stats()["tiers"]
        assert stats["promotion"]["chunks"] == 2 and stats["cascade"]["chunks"] == 2
        assert stats["lookup_time"]["count"] == 2


def test_of_a_failed_job_those_chunks_are_kept_that_it_says_are_good():
    tier = DictTier()
    tier.kept.update(keys(1, 2, 3))
    tier.answers_jobs = False
    with make_node(tiers=(tier,)) as node:
        for chunk in keys(1, 2, 3):
            assert node.manager.lookup(chunk, "r") is LookupResult.HIT_PENDING
        node.manager.on_schedule_end()
        [(job, *_)] = tier.jobs
        tier.results.append((job, False, frozenset(keys(1, 3)), 2 * CHUNK_BYTES, None))
        node.manager.on_schedule_end()
        hit, miss = LookupResult.HIT, LookupResult.MISS
        # What it did not bring it is not asked for again by that request.
        assert [node.manager.lookup(chunk, "r") for chunk in keys(1, 2, 3)] == [hit, miss, hit]


def test_a_job_is_reported_once_and_unknown_ones_are_counted():
    tier = DictTier()
    with make_node(tiers=(tier,)) as node:
        store(node.manager, keys(1), "r")
        [(job, *_)] = tier.jobs
        tier.results += [(job, True, None, 0, None), (4711, True, None, 0, None)]
        node.manager.on_schedule_end()
        [stats] = node.manager.stats()["tiers"]
        assert stats["cascade"]["jobs"] == 1
        assert stats["unknown_reports"] == 2
        assert node.manager.stats()["pinned_chunks"] == 0


@pytest.mark.parametrize("method", ["lookup", "submit", "take_finished", "on_new_request", "on_schedule_end"])
def test_a_tier_that_raises_is_left_alone_and_its_chunks_are_misses(method):
    tier = DictTier()
    tier.kept.update(keys(*range(100, 200)))
    calls = 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        raise OSError("no such disk")

    setattr(tier, method, fail)
    with make_node(slots=16, tiers=(tier,)) as node:
        manager = node.manager
        for step in range(10):
            request = f"r{step}"
            manager.on_new_request(request)
            manager.lookup(keys(100 + step)[0], request)
            store(manager, keys(step), request)
            assert manager.lookup(keys(step)[0], request) is LookupResult.HIT
            manager.on_schedule_end()
        [stats] = manager.stats()["tiers"]
        assert calls > 0
        assert stats["faults"] >= 3
        assert stats["health"] != "up"
        manager.on_new_request("late")
        before = calls
        assert manager.lookup(keys(150)[0], "late") is LookupResult.MISS
        assert calls == before


def test_a_tier_that_raises_at_the_end_ends_all_the_same():
    tier = DictTier()

    def fail(*args: Any) -> Any:
        raise OSError("no such disk")

    tier.shutdown = tier.has_pending_work = tier.on_request_finished = fail
    node = make_node(tiers=(tier,))
    store(node.manager, keys(1), "r")
    node.manager.on_request_finished("r")
    node.manager.has_pending_work()
    node.shutdown()
    node.shutdown()


def test_a_tier_must_not_call_the_manager():
    raised: list[str] = []

    class Caller(DictTier):
        def lookup(self, key: bytes, request: Any) -> int:
            try:
                node.manager.stats()
            except RuntimeError as error:
                raised.append(str(error))
            return terrace_kv.tiers.MISS

    with make_node(tiers=(Caller(),)) as node:
        assert node.manager.lookup(keys(1)[0], "r") is LookupResult.MISS
        assert raised and "must not call the manager" in raised[0]
        assert node.manager.lookup(keys(2)[0], "r") is LookupResult.MISS


@pytest.mark.parametrize("call", ["shutdown", "lock.release"])
def test_a_tier_must_not_end_the_manager_that_calls_it(call: str):
    raised: list[str] = []

    class Caller(DictTier):
        def lookup(self, key: bytes, request: Any) -> int:
            try:
                operator.attrgetter(call)(node.manager)()
            except RuntimeError as error:
                raised.append(str(error))
            return terrace_kv.tiers.MISS

    with make_node(tiers=(Caller(),)) as node:
        for number in range(2):
            assert node.manager.lookup(keys(number)[0], "r") is LookupResult.MISS
    assert len(raised) == 2 and "a tier must not" in raised[0]


def test_a_tier_must_not_call_the_manager_from_the_control_thread_either():
    calls = (
        lambda manager: manager.stats(),
        lambda manager: manager.lock.acquire(),
        lambda manager: manager.lock.acquire(timeout=0.1),
        lambda manager: manager.drain(0.1),
        lambda manager: manager.shutdown(),
    )
    raised: list[str] = []
    done = threading.Event()

    class Caller(DictTier):
        serves_external_requests = serves_between_steps = True

        def serve_external_requests(self, server: Any) -> None:
            if done.is_set() or threading.current_thread() is threading.main_thread() or not made:
                return
            for call in calls:
                try:
                    call(made[0].manager)
                except RuntimeError as error:
                    raised.append(str(error))
            done.set()

    made: list[Node] = []
    with make_node(tiers=(Caller(),), tier_poll_interval_s=0.001) as node:
        made.append(node)
        assert done.wait(PATIENCE_S)
    assert len(raised) == len(calls)


@pytest.mark.parametrize(
    "answer",
    [
        [(1, False, 5, 0, None)],
        [(1, True, None, -1, None)],
        [(1,)],
        None,
        ["job"],
    ],
)
def test_reports_that_are_none_are_faults_of_the_tier(answer: Any):
    class Wrong(DictTier):
        def take_finished(self) -> Any:
            return answer

    with make_node(tiers=(Wrong(),)) as node:
        for number in range(5):
            store(node.manager, keys(number), f"r{number}")
            node.manager.on_schedule_end()
        [stats] = node.manager.stats()["tiers"]
        assert stats["faults"] > 0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1e300, 1e300])
def test_a_job_may_have_taken_any_time(seconds: float):
    tier = DictTier()
    tier.answers_jobs = False
    with make_node(tiers=(tier,)) as node:
        store(node.manager, keys(1), "r")
        tier.results = [(tier.jobs[0][0], True, None, CHUNK_BYTES, seconds)]
        node.manager.on_schedule_end()
        [stats] = node.manager.stats()["tiers"]
        assert stats["faults"] == 0
        assert 0 <= stats["seconds_per_mib"] < 1e9


def test_a_tiers_list_may_change_while_it_is_read():
    class Report:
        def __getitem__(self, index: int) -> int:
            reports.clear()
            return 12345

    class Changer(DictTier):
        def take_finished(self) -> Any:
            return reports

    reports: list[Any] = []
    with make_node(tiers=(Changer(),)) as node:
        store(node.manager, keys(1), "r")
        reports.extend(Report() for _ in range(50))
        node.manager.on_schedule_end()
        assert node.manager.stats()["tiers"][0]["unknown_reports"] == 50


def test_a_forked_process_ends_without_the_nodes_threads(tmp_path: pathlib.Path):
    tiers = [{"type": "file", "root_dir": str(tmp_path)}, {"type": "peer", "port": 0}]
    node = make_node(secondary_tiers=tiers, tier_poll_interval_s=0.001)

    def in_child() -> None:
        manager = node.manager
        for call in (
            lambda: node.drain(PATIENCE_S),
            lambda: manager.lookup(keys(1)[0], "r"),
            lambda: manager.prepare_store(keys(2), "r"),
            manager.lock.__enter__,
        ):
            with pytest.raises(RuntimeError, match="forked"):
                call()
        node.shutdown()

    child = os.fork()
    if child == 0:
        code = 1
        try:
            in_child()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + PATIENCE_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child does not end")
        time.sleep(0.01)
    assert ended[1] == 0
    store(node.manager, keys(1), "r")
    assert node.drain(PATIENCE_S)
    node.shutdown()


_FIELDS = """
fields = dict(model="m", revision="1", dtype="i", layout="n", layout_version=1, tokens_per_chunk=16, chunk_bytes=4096,
              shard_count=1, engine="e")
"""


def test_a_process_ends_with_a_tier_of_python_that_the_control_thread_calls():
    """And nobody shuts the node down: as an engine that failed."""
    ran = subprocess.run([sys.executable, "-c", _FIELDS + _ENDS], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "shut down\n"), ran.stderr


_ENDS = """
import terrace_kv, time
class Served(terrace_kv.Tier):
    serves_external_requests = serves_between_steps = True
    def lookup(self, key, request): return 0
    def submit(self, *job): pass
    def take_finished(self): return []
    def shutdown(self): print("shut down", flush=True)
config = {"cpu_bytes_to_use": 65536, "prefault_threads": 0, "tier_poll_interval_s": 0.0001}
node = terrace_kv.Node(config, terrace_kv.CacheIdentity(**fields), tiers=[(0, Served())])
"""


def test_a_thread_that_waits_for_the_lock_when_the_interpreter_ends_does_not_abort_it():
    ran = subprocess.run([sys.executable, "-c", _FIELDS + _WAITS], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "waits\n"), ran.stderr


_WAITS = """
import terrace_kv, threading, time
node = terrace_kv.Node({"cpu_bytes_to_use": 65536, "prefault_threads": 0}, terrace_kv.CacheIdentity(**fields))
node.manager.lock.__enter__()
def wait():
    print("waits", flush=True)
    with node.manager.lock: pass
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("name", ["type", "serves_between_steps", "backpressure", "backpressure_ms_per_mib"])
def test_a_tiers_attribute_of_a_wrong_type_is_named(name: str):
    tier = DictTier()
    setattr(tier, name, object())
    with pytest.raises(TypeError, match=f"a tier's {name} is of a wrong type: <object"):
        make_node(tiers=(tier,))


def test_a_look_up_that_answers_nonsense_is_a_fault():
    class Wrong(DictTier):
        def lookup(self, key: bytes, request: Any) -> int:
            return 3

    with make_node(tiers=(Wrong(),)) as node:
        assert node.manager.lookup(keys(1)[0], "r") is LookupResult.MISS
        [stats] = node.manager.stats()["tiers"]
        assert stats["faults"] == 1


def test_an_interrupt_during_a_tiers_call_is_not_the_tiers():
    class Interrupted(DictTier):
        def lookup(self, key: bytes, request: Any) -> int:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job's is to ignore it.
    try:
        with make_node(tiers=(Interrupted(),)) as node, pytest.raises(KeyboardInterrupt):
            node.manager.lookup(keys(1)[0], "r")
            time.sleep(0)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_tier_that_wants_whole_requests_gets_what_host_memory_has_already():
    tier = DictTier()
    tier.on_new_request = lambda request: request == "whole"
    with make_node(tiers=(tier,)) as node:
        manager = node.manager
        assert manager.on_new_request("r") is False
        store(manager, keys(1, 2), "r")
        assert manager.on_new_request("whole") is True
        assert manager.prepare_store(keys(1, 2), "whole")[0] == []
        assert [job[1] for job in tier.jobs] == [keys(1, 2)] * 2


@pytest.mark.parametrize("backpressure", ["off", "throttle", "drop"])
def test_a_tier_says_what_is_left_out_while_it_is_slow(backpressure):
    tier = DictTier()
    tier.backpressure = backpressure
    with make_node(slots=32, tiers=(tier,)) as node:
        for number in range(20):
            store(node.manager, keys(number), f"r{number}")
            node.manager.on_schedule_end()
        # What is measured shows that it is on.
        assert (node.manager.stats()["tiers"][0]["seconds_per_mib"] > 0) == (backpressure != "off")
    tier.backpressure = "perhaps"
    with pytest.raises(ConfigError, match="backpressure"):
        make_node(tiers=(tier,))


def test_a_request_that_may_load_from_nowhere_asks_no_tier():
    tier = DictTier()
    tier.kept.update(keys(1))
    with make_node(tiers=(tier,)) as node:
        node.manager.on_new_request("r", 0)
        assert node.manager.lookup(keys(1)[0], "r") is LookupResult.MISS


@pytest.mark.parametrize("ends", [5, "x", [-1], [1 << 40], [None], {keys(1)[0]: "end"}])
def test_ends_of_another_type_are_an_error_that_says_so(ends: Any) -> None:
    with make_node() as node, pytest.raises(TypeError, match="ends are whole numbers"):
        node.manager.prepare_store(keys(1), "r", True, ends)


def test_what_nobody_made_is_an_error_to_use() -> None:
    manager = terrace_kv._core.Manager.__new__(terrace_kv._core.Manager)
    with pytest.raises(TypeError):
        manager.lookup(keys(1)[0], "r")
    with pytest.raises(BufferError):
        memoryview(terrace_kv._core.HostMemory.__new__(terrace_kv._core.HostMemory))


def test_times_that_are_no_numbers_do_not_wait_for_ever() -> None:
    with make_node() as node:
        with pytest.raises(ValueError, match="not a number"):
            node.manager.lock.acquire(timeout=float("nan"))
        assert node.drain(float("nan"))
        assert not node.wait_for_progress(float("nan"))


def test_a_chunk_named_twice_is_refused_and_changes_nothing() -> None:
    with make_node(slots=4) as node:
        manager = node.manager
        # Short hashes that begin alike are not alike.
        alike = keys_of([b"12345678" + bytes([i]) for i in range(3)])
        store(manager, alike, "a")
        for call in (manager.prepare_store, manager.prepare_load):
            with pytest.raises(ValueError, match="named twice"):
                call([alike[0], alike[1], alike[0]], "b")
        assert manager.stats()["pinned_chunks"] == 0
        assert manager.stats()["ready_chunks"] == 3


# Events and counts.


def test_there_is_an_event_for_each_call_that_changed_something():
    with make_node(slots=2, enable_kv_events=True) as node:
        manager = node.manager
        store(manager, keys(1), "r", is_sequence=False)
        store(manager, keys(2), "r", is_sequence=False)
        store(manager, keys(3), "s", is_sequence=False)
        expected = [("stored", keys(1)), ("stored", keys(2)), ("removed", keys(1)), ("stored", keys(3))]
        assert manager.take_events() == expected
        assert manager.take_events() == []


def test_failed_stores_are_said_unless_the_chunk_came_back():
    with make_node(enable_kv_events=True) as node:
        manager = node.manager
        manager.prepare_store(keys(1, 2), "r")
        manager.complete_store(keys(1, 2), "r", False)
        manager.prepare_store(keys(1), "s")
        assert manager.take_events() == [("failed", keys(2))]


def test_a_reset_is_an_event_and_without_the_key_there_are_none():
    with make_node(enable_kv_events=True) as node:
        store(node.manager, keys(1, 2), "r")
        node.manager.reset_cache()
        stored, removed = node.manager.take_events()
        assert stored[0] == "stored" and removed[0] == "removed" and set(removed[1]) == set(keys(1, 2))
        assert node.manager.ready_chunks() == []
    with make_node() as node:
        store(node.manager, keys(1), "r")
        assert node.manager.take_events() == []
        assert node.manager.ready_chunks() == keys(1)


def test_wanted_slots_are_counted_to_the_slot_also_if_there_is_no_room():
    with make_node(slots=4) as node:
        manager = node.manager
        store(manager, keys(1, 2, 3), "r")
        store(manager, keys(1, 2, 3), "r")
        manager.prepare_load(keys(1, 2, 3), "s")
        assert manager.prepare_store(keys(4, 5), "t") is None
        assert manager.stats()["store_sizes"] == {3: 1, 2: 1}
        assert manager.stats()["store_refusals"] == 1


def test_lookups_are_counted_by_their_answer():
    with make_node() as node:
        manager = node.manager
        store(manager, keys(1), "r")
        for number in (1, 1, 2):
            manager.lookup(keys(number)[0], "r")
        assert manager.stats()["hit_time"]["count"] == 2
        assert manager.stats()["misses"] == 1


FEED_METRICS = (
    "usage write_usage read_usage allocation_size skipped_stores promotion_refusals evicted_chunks store_refusals "
    "promotions_overdue lookups_overdue resets slot_count ready_chunks orphaned_slots stuck_slots lock_wait "
    "queried_chunks hit_chunks lookup_time lookup_delay promotion_latency promotion_bytes promotion_time "
    "promotion_failed_jobs promotion_jobs_in_flight promotion_slots_in_flight cascade_bytes cascade_time "
    "cascade_failed_jobs cascade_jobs_in_flight cascade_slots_in_flight seconds_per_mib dropped_by_backpressure faults "
    "downs unknown_reports dropped up own"
).split()


def take(feed: Any) -> dict[str, Any]:
    """What changed, by metric, with the type before."""
    types: dict[str, str] = {}
    values: dict[str, Any] = {}
    feed.take(types, values)
    assert types.keys() == values.keys()
    return {name: (types[name], values[name]) for name in values}


def make_feed(manager: Any) -> Any:
    return terrace_kv._core.StatsFeed(manager, "c", "g", "h", {name: f"my {name}" for name in FEED_METRICS})


def test_a_feed_says_what_changed():
    with make_node(slots=4) as node:
        manager = node.manager
        store(manager, keys(1), "before")
        feed = make_feed(manager)
        first = take(feed)
        assert first["my slot_count"] == ("g", {(): 4})
        assert first["my ready_chunks"] == ("g", {(): 1})
        assert "my allocation_size" not in first  # It was before.
        store(manager, keys(2, 3), "r")
        store(manager, keys(4), "r")
        store(manager, keys(5, 6), "s")
        for number in (5, 5, 9):
            manager.lookup(keys(number)[0], "s")
        manager.prepare_load(keys(5), "s")
        now = take(feed)
        assert now["my allocation_size"] == ("h", {(): [1, 2, 2]})
        assert now["my evicted_chunks"] == ("c", {(): 2})
        assert now["my ready_chunks"] == ("g", {(): 4})
        assert now["my queried_chunks"] == ("c", {("0:primary",): 3})
        assert now["my hit_chunks"] == ("c", {("0:primary",): 2})
        assert now["my usage"] == ("g", {(): 0.25})
        assert "my slot_count" not in now  # As it was said.
        usage = {"my usage": 0.25, "my write_usage": 0, "my read_usage": 0.25}  # Always there, and nothing else is.
        assert take(feed) == {name: ("g", {(): value}) for name, value in usage.items()}


def test_a_feed_says_what_a_tier_did():
    tier = DictTier()
    with make_node(slots=2, tiers=(tier,)) as node:
        manager = node.manager
        label = (f"1:{tier.type}",)
        feed = make_feed(manager)
        assert take(feed)["my up"] == ("g", {label: 1})
        tier.answers_jobs = False
        store(manager, keys(1), "r")
        now = take(feed)
        assert now["my cascade_jobs_in_flight"] == ("g", {label: 1})
        assert now["my cascade_slots_in_flight"] == ("g", {label: 0.5})
        assert "my cascade_bytes" not in now
        tier.results.append((tier.jobs[0][0], True, None, CHUNK_BYTES, None))
        manager.on_schedule_end()
        now = take(feed)
        assert now["my cascade_jobs_in_flight"] == ("g", {label: 0})
        assert now["my cascade_bytes"] == ("c", {label: CHUNK_BYTES})
        assert now["my cascade_time"][1][label] > 0
        tier.kept.add(keys(7)[0])
        manager.lookup(keys(7)[0], "s")
        manager.lookup(keys(8)[0], "s")
        manager.on_schedule_end()
        now = take(feed)
        assert now["my queried_chunks"] == ("c", {("0:primary",): 2, label: 2})
        assert now["my hit_chunks"] == ("c", {label: 1})
        kind, samples = now["my lookup_time"]
        assert kind == "h" and {labels: len(samples[labels]) for labels in samples} == {("0:primary",): 2, label: 2}
        tier.results.append((tier.jobs[1][0], False, None, 0, None))
        manager.on_schedule_end()
        now = take(feed)
        assert now["my promotion_failed_jobs"] == ("c", {label: 1})
        [(labels, samples)] = now["my promotion_latency"][1].items()
        assert labels == (*label, "failure") and len(samples) == 1 and 0 < samples[0] < 10


def test_a_feed_without_a_name_for_a_metric_is_refused():
    with make_node() as node, pytest.raises(KeyError, match="usage"):
        terrace_kv._core.StatsFeed(node.manager, "c", "g", "h", {})


def test_a_feed_says_nothing_twice_when_python_raises():
    with make_node(slots=4) as node:
        manager = node.manager
        feed = make_feed(manager)
        store(manager, keys(1, 2), "r")
        manager.reset_cache()
        types, values = {}, {"my resets": None}  # No place for it, and it comes late.
        with pytest.raises(Exception):
            feed.take(types, values)
        del values["my resets"]
        feed.take(types, values)
        assert values["my allocation_size"] == {(): [2]}


# Memory and copies.


def _join_and_write(config: dict[str, Any], name: str, byte: int) -> None:
    import json

    memory = terrace_kv.HostMemory.share(json.dumps(config), identity(), name, 1, 2, 0, PATIENCE_S, False)
    memory.await_all()
    bytes_of = memoryview(memory).cast("B")
    bytes_of[3 * memory.stride_bytes] = byte


def test_memory_is_shared_by_two_processes():
    import json

    config = {"cpu_bytes_to_use": 8 * CHUNK_BYTES, "prefault_threads": 0}
    name = f"test-{uuid.uuid4().hex}"
    memory = terrace_kv.HostMemory.share(json.dumps(config), identity(), name, 1, 2, None, PATIENCE_S, True)
    view = memoryview(memory)
    assert view.shape == (memory.slot_count, memory.stride_bytes) and memory.slot_count == 8
    child = multiprocessing.get_context("spawn").Process(target=_join_and_write, args=(config, name, 42))
    child.start()
    memory.await_all()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    assert view.cast("B")[3 * memory.stride_bytes] == 42
    with Node(config, identity(), memory=memory) as node:
        store(node.manager, keys(1), "r")


def test_memory_of_another_identity_cannot_be_joined():
    import json

    config = json.dumps({"cpu_bytes_to_use": 8 * CHUNK_BYTES, "prefault_threads": 0})
    name = f"test-{uuid.uuid4().hex}"
    memory = terrace_kv.HostMemory.share(config, identity(), name, 1, 2, 0, PATIENCE_S, True)
    with pytest.raises(TerraceError) as raised:
        terrace_kv.HostMemory.share(config, identity(model="other"), name, 1, 2, None, PATIENCE_S, False)
    assert raised.value.code == "incompatible"
    del memory


class Paged:
    """Two tensors of `blocks` pages; page p of tensor t begins with bytes of t and p."""

    PAGE_BYTES = (64, 32)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.data = [bytearray(blocks * size) for size in self.PAGE_BYTES]
        self.tensors = []
        for data, size in zip(self.data, self.PAGE_BYTES):
            address = ctypes.addressof(ctypes.c_char.from_buffer(data))
            self.tensors.append((address, blocks, size, size))

    def page(self, tensor: int, block: int) -> bytes:
        size = self.PAGE_BYTES[tensor]
        return bytes(self.data[tensor][block * size : (block + 1) * size])

    def fill(self) -> None:
        for tensor, size in enumerate(self.PAGE_BYTES):
            for block in range(self.blocks):
                self.data[tensor][block * size : (block + 1) * size] = bytes([16 * tensor + block]) * size

    def clear(self) -> None:
        for data in self.data:
            data[:] = bytes(len(data))


def make_copier(paged: Paged, blocks_per_chunk: int = 2) -> tuple[Any, Any]:
    import json

    memory = terrace_kv.HostMemory.create(
        json.dumps({"cpu_bytes_to_use": 8 * CHUNK_BYTES, "prefault_threads": 0}), identity()
    )
    groups = [[(0, 64)], [(1, 32)]]
    return terrace_kv.BlockCopier.create(memory, 0, paged.tensors, groups, blocks_per_chunk, 2), memory


def copy(copier: Any, job: int, is_store: bool, blocks: list[int], sizes: list[int], firsts: list[int],
         slots: list[int], urgent: bool = False) -> int:
    """Bytes copied."""
    copier.submit(job, is_store, array.array("i", blocks), sizes, firsts, array.array("i", slots), 2, urgent)
    assert copier.wait_for([job], PATIENCE_S)
    [(done, size, seconds, error)] = copier.take_finished()
    assert done == job and seconds >= 0 and error is None
    return size


def test_blocks_of_several_groups_come_back_as_they_went():
    paged = Paged(8)
    paged.fill()
    copier, memory = make_copier(paged)
    # Group 0: blocks 1, 5, 2, 6 in chunks 3 and 0; group 1: blocks 4, 7 in chunk 5.
    moved = copy(copier, 1, True, [1, 5, 2, 6, 4, 7], [4, 2], [0, 0], [3, 0, 5])
    assert moved == 4 * 64 + 2 * 32
    paged.clear()
    copy(copier, 2, False, [1, 5, 2, 6, 4, 7], [4, 2], [0, 0], [3, 0, 5], urgent=True)
    for block in range(8):
        assert paged.page(0, block) == bytes([block if block in (1, 5, 2, 6) else 0]) * 64
        assert paged.page(1, block) == bytes([16 + block if block in (4, 7) else 0]) * 32
    del memory


def test_the_first_block_may_lie_in_the_middle_of_its_chunk():
    paged = Paged(8)
    paged.fill()
    copier, _ = make_copier(paged)
    # Blocks 3, 4, 5 are the 2nd to 4th of their request: the halves of chunks 1 and 2.
    copy(copier, 1, True, [3, 4, 5], [3, 0], [1, 0], [1, 2])
    paged.clear()
    copy(copier, 2, False, [0, 1], [2, 0], [2, 0], [2])
    assert paged.page(0, 0) == bytes([4]) * 64
    assert paged.page(0, 1) == bytes([5]) * 64
    copy(copier, 3, False, [2], [1, 0], [1, 0], [1])
    assert paged.page(0, 2) == bytes([3]) * 64


@pytest.mark.parametrize(
    ("blocks", "sizes", "firsts", "slots"),
    [
        ([8], [1, 0], [0, 0], [0]),  # No such block.
        ([-1], [1, 0], [0, 0], [0]),
        ([0], [1, 0], [0, 0], [8]),  # No such slot.
        ([0], [1, 0], [0, 0], [-1]),
        ([0, 1, 2], [3, 0], [0, 0], [0]),  # Too few slots.
        ([0], [1, 0], [0, 0], [0, 1]),  # Too many.
        ([0, 1], [1, 0], [0, 0], [0]),  # Too many blocks.
        ([0], [2, 0], [0, 0], [0]),  # Too few.
        ([0], [1, 0], [0], [0]),  # Groups of two lengths.
        ([0], [0, 0, 1], [0, 0, 0], [0]),  # No such group.
    ],
)
def test_a_job_that_names_what_is_not_there_is_refused_whole(blocks, sizes, firsts, slots):
    paged = Paged(8)
    paged.fill()
    copier, memory = make_copier(paged)
    with pytest.raises(ValueError):
        copier.submit(1, True, array.array("i", blocks), sizes, firsts, array.array("i", slots), 2, False)
    assert copier.take_finished() == []
    assert not any(memoryview(memory).cast("B"))
    # And its id is free.
    copy(copier, 1, True, [0, 1], [2, 0], [0, 0], [0])


def test_pages_that_do_not_fit_into_a_slot_are_an_error():
    paged = Paged(8)
    with pytest.raises(ConfigError):
        make_copier(paged, blocks_per_chunk=1000)


def test_the_example_runs():
    example = pathlib.Path(__file__).parents[2] / "examples" / "python" / "embed.py"
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "stored 40 chunks",
        "loaded 40 from host memory",
        "loaded 40 after a restart, from disk",
    ]
