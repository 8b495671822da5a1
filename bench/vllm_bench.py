# vllm: the manager through Python against vLLM's own, the same calls in one run
"""Measures Terrace's manager as vLLM calls it, beside vLLM 0.33's own.

    bench/run vllm [--quick] [--json FILE] [--engine]

Every measurement is a process of its own, so that each has a fresh heap; a pair is run in turn, and the ratio is of their
medians. --engine also starts real vLLMs, for the time to first token from host memory and from files.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python" / "tests")]
now = time.perf_counter_ns
CHUNKS = 64  # Of a request.
MODEL_S = 0.003  # Between two steps of a scheduler.
TOKENS = 256  # Of a chunk: where its key stands in the prompt.
Side = str  # "terrace" or "reference"


def keys_from(start: int, count: int, salt: bytes = b"k") -> list[bytes]:
    group = (0).to_bytes(4, "big")
    return [hashlib.sha256(salt + i.to_bytes(8, "little")).digest() + group for i in range(start, start + count)]


def context(name: str, keys: list[bytes]) -> Any:
    from vllm.v1.kv_offload.base import ReqContext

    made = ReqContext(req_id=name)
    for place, key in enumerate(keys, 1):
        made.set_offload_key_position(key, place * TOKENS)
    return made


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def make_manager(side: Side, chunks: int) -> Any:
    """A manager of host memory alone."""
    if side == "reference":
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        return CPUOffloadingManager(num_chunks=chunks)
    from vllm_suite.stand_ins import CPUOffloadingManager as Terrace

    return Terrace(num_chunks=chunks)


def calls_of_manager(side: Side, resident: int, requests: int, batch: int = 128) -> dict[str, float]:
    """ns a chunk of each operation, with `resident` chunks; the longest call; bytes a chunk."""
    from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

    step = ScheduleEndContext((), ())
    hit, miss = LookupResult.HIT, LookupResult.MISS
    make_manager(side, 64).shutdown()  # What is imported is not the manager's memory.
    gc.collect()
    before = resident_bytes()
    manager = make_manager(side, resident)
    number = 0
    longest = 0

    def store(keys: list[bytes]) -> int:
        nonlocal number, longest
        number += 1
        request = context(f"s{number}", keys)
        manager.on_new_request(request)
        began = now()
        plan = manager.prepare_store(keys, request)
        one = now()
        manager.complete_store(set(plan.keys_to_store), request)
        two = now()
        manager.on_request_finished(request)
        end = now()
        longest = max(longest, one - began, two - one, end - two)
        manager.get_stats()
        return end - began

    for start in range(0, resident, batch):
        store(keys_from(start, min(batch, resident - start)))
        manager.on_schedule_end(step)
    gc.collect()
    memory = (resident_bytes() - before) / resident

    longest = 0
    chosen = random.Random(7)
    looked, missed, loaded, stored = [], [], [], []
    for _ in range(requests):
        keys = keys_from(chosen.randrange(resident - batch), batch)
        absent = keys_from(chosen.randrange(1 << 40), batch, b"absent")
        number += 1
        request = context(f"l{number}", keys)
        with manager.lock:
            manager.on_new_request(request)
            lookup = manager.lookup
            began = now()
            for key in keys:
                if lookup(key, request) is not hit:
                    raise AssertionError("a stored chunk is not there")
            one = now()
            for key in absent:
                if lookup(key, request) is not miss:
                    raise AssertionError("a chunk that was never stored is there")
            two = now()
            manager.prepare_load(keys, request)
            three = now()
            manager.complete_load(set(keys), request)
            four = now()
            manager.on_request_finished(request)
            five = now()
            longest = max(longest, three - two, four - three, five - four)
            manager.on_schedule_end(step)
        looked.append((one - began) / batch)
        missed.append((two - one) / batch)
        loaded.append((four - two) / batch)
    fresh = resident
    for _ in range(requests):
        keys = keys_from(fresh, batch)
        fresh += batch
        with manager.lock:
            stored.append(store(keys) / batch)
            manager.on_schedule_end(step)
    return {
        "lookup_hit_ns": statistics.median(looked),
        "lookup_miss_ns": statistics.median(missed),
        "load_ns": statistics.median(loaded),
        "store_ns": statistics.median(stored),
        "longest_us": longest / 1e3,
        "bytes": memory,
    }


def make_tiering(side: Side, chunks: int, directory: str | None, row_bytes: int) -> Any:
    """A manager with a file tier, or with none."""
    import vllm_parts

    return vllm_parts.make_tiering(side, chunks, directory, row_bytes)


def steps_of_scheduler(side: Side, tier: str, repeats: int) -> dict[str, float]:
    """us for all that a request of 64 chunks costs the scheduler's thread in the manager, in all of its steps.

    What the tier has to do is done beside it: on the cores that a step needs, and of vLLM's manager in the interpreter
    that it needs. A request that waits for its chunks asks again in each step, as vLLM's connector does, and meanwhile
    the thread sleeps, as while a model computes. With the file tier both sides write a file
    for each chunk, by O_DIRECT if they can, with 16 threads for each direction, and sync none; Terrace's have a header
    of 4 KiB besides.
    """
    from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

    row = 4096
    hit, miss = LookupResult.HIT, LookupResult.MISS
    resident = 16  # Requests in host memory. Each repetition brings two; what is asked of the files left it before.
    age = resident - 4
    with tempfile.TemporaryDirectory(dir=os.environ.get("TERRACE_BENCH_DIR")) as directory:
        manager = make_tiering(side, resident * CHUNKS, directory if tier == "file" else None, row)
        spent, number, fresh = 0, 0, 0

        def step(*works: Callable[[], Any], scheduled: tuple[str, ...] = ()) -> Any:
            """The answer of the last one."""
            nonlocal spent
            began = now()
            with manager.lock:
                answer = None
                for work in works:
                    answer = work()
                manager.on_schedule_end(ScheduleEndContext(scheduled, ()))
            spent += now() - began
            return answer

        def output(complete: Callable[[], Any]) -> None:
            """What follows a model's step."""
            nonlocal spent
            began = now()
            with manager.lock:
                complete()
                manager.get_stats()
                list(manager.take_events())
            spent += now() - began

        def look_up(keys: list[bytes], request: Any) -> bool | None:
            """Whether all are there; None if that is to be asked again."""
            waits = False
            for key in keys:
                answer = manager.lookup(key, request)
                if answer is miss:
                    return None if waits else False
                waits = waits or answer is not hit
            return None if waits else True

        def begin(name: str, keys: list[bytes]) -> tuple[Any, bool]:
            nonlocal number, spent
            number += 1
            spent = 0
            request = context(f"{name}{number}", keys)
            deadline = time.monotonic() + 20
            found = step(lambda: manager.on_new_request(request), lambda: look_up(keys, request))
            while found is None:
                assert time.monotonic() < deadline, "the tier does not end"
                time.sleep(MODEL_S)
                found = step(lambda: look_up(keys, request))
            return request, found

        def end(request: Any) -> float:
            step(lambda: manager.on_request_finished(request))
            return spent / 1e3

        def settle() -> None:
            deadline = time.monotonic() + 20
            while manager.has_pending_work():
                assert time.monotonic() < deadline, "the tier does not end"
                time.sleep(MODEL_S)
                step()

        def store() -> tuple[list[bytes], float]:
            nonlocal fresh
            keys = keys_from(fresh, CHUNKS)
            fresh += CHUNKS
            request, found = begin("s", keys)
            assert not found
            plan = step(lambda: manager.prepare_store(keys, request), scheduled=(request.req_id,))
            output(lambda: manager.complete_store(set(plan.keys_to_store), request))
            return keys, end(request)

        def load(keys: list[bytes]) -> float:
            request, found = begin("l", keys)
            assert found, "what was stored is not there"
            step(
                lambda: manager.prepare_load(keys, request),
                lambda: manager.get_load_source(keys[0], request),
                scheduled=(request.req_id,),
            )
            output(lambda: manager.complete_load(set(keys), request))
            return end(request)

        stored, from_host, from_file = [], [], []
        all_keys = []
        for i in range(repeats + age):
            keys, took = store()
            all_keys.append(keys)
            warm = i >= age
            if warm:
                stored.append(took)
            took = load(keys)
            if warm:
                from_host.append(took)
            settle()  # Or the tier would have ever more to do.
            if warm and tier == "file":
                from_file.append(load(all_keys[i - age]))
        manager.shutdown()
    taken = {"host hit": from_host, "file hit": from_file, "store": stored}
    return {case: statistics.median(values) for case, values in taken.items() if values}


def in_child(work: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """What `work` returns in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


class Report:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        print(f"{'':46}{'Terrace':>12}{'vLLM':>12}{'ratio':>9}  goal")

    def row(self, name: str, value: float, reference: float, unit: str, goal: float | None, least: bool = True) -> None:
        """`goal` bounds the ratio: of vLLM's over ours (`least`), or of ours over vLLM's (at most)."""
        ratio = reference / value if least else value / reference
        ok = None if goal is None else (ratio >= goal if least else ratio <= goal)
        sign = "" if goal is None else f"{'>=' if least else '<='} {goal:g} {'ok' if ok else 'MISSED'}"
        print(f"{name:46}{value:>9.2f} {unit:2}{reference:>9.2f} {unit:2}{ratio:>9.3g}  {sign}", flush=True)
        self.rows.append(
            {"name": name, "value": value, "unit": unit, "reference": reference, "ratio": ratio, "goal": goal, "ok": ok}
        )

    def limit(self, name: str, value: float, reference: float, unit: str, limit: float) -> None:
        """`limit` bounds our value itself."""
        ok = value <= limit
        print(
            f"{name:46}{value:>9.2f} {unit:2}{reference:>9.2f} {unit:2}{value / reference:>9.3g}  "
            f"<= {limit:g} {unit} {'ok' if ok else 'MISSED'}",
            flush=True,
        )
        self.rows.append(
            {"name": name, "value": value, "unit": unit, "reference": reference, "ratio": value / reference,
             "goal": limit, "ok": ok}
        )


def manager_rows(report: Report, resident: int, requests: int) -> None:
    ours, theirs = (in_child(calls_of_manager, side, resident, requests) for side in ("terrace", "reference"))
    at = f"{resident // 1000}k chunks: "
    report.row(at + "look-up, hit, a chunk", ours["lookup_hit_ns"] / 1e3, theirs["lookup_hit_ns"] / 1e3, "us", 4)
    report.row(at + "look-up, miss, a chunk", ours["lookup_miss_ns"] / 1e3, theirs["lookup_miss_ns"] / 1e3, "us", None)
    report.row(at + "load, a chunk", ours["load_ns"] / 1e3, theirs["load_ns"] / 1e3, "us", None)
    report.row(at + "store that evicts, a chunk", ours["store_ns"] / 1e3, theirs["store_ns"] / 1e3, "us", 20)
    report.row(at + "longest call", ours["longest_us"], theirs["longest_us"], "us", 1 / 100, least=False)
    report.row(at + "memory, a chunk", ours["bytes"], theirs["bytes"], "B", 1 / 6, least=False)


def step_rows(report: Report, repeats: int) -> None:
    for tier, goal in (("none", 5), ("file", 10)):
        ours, theirs = (in_child(steps_of_scheduler, side, tier, repeats) for side in ("terrace", "reference"))
        for case, value in ours.items():
            report.row(f"64 chunks, tier {tier}: {case}", value, theirs[case], "us", goal)


def main() -> None:
    os.environ.setdefault("TERRACE_LOG_LEVEL", "warning")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    arguments = argparse.ArgumentParser(prog="bench/run vllm")
    arguments.add_argument("--quick", action="store_true", help="fewer chunks and repetitions: a minute or two")
    arguments.add_argument("--json", metavar="FILE")
    arguments.add_argument("--engine", action="store_true", help="also real vLLMs: some minutes")
    chosen = arguments.parse_args()
    report = Report()
    manager_rows(report, 100_000 if chosen.quick else 1_000_000, 100 if chosen.quick else 400)
    step_rows(report, 40 if chosen.quick else 200)
    import vllm_parts

    vllm_parts.external_rows(report, 200 if chosen.quick else 600)
    if chosen.engine:
        vllm_parts.engine_rows(report, 3 if chosen.quick else 12)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(report.rows, indent=1))


if __name__ == "__main__":
    main()
