"""Parts of vllm_bench.py: vLLM's own managers with tiers, a neighbour that asks, real vLLMs."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import terrace_kv

if TYPE_CHECKING:
    from vllm_bench import Report

ROOT = Path(__file__).resolve().parent.parent
STEP_S = 0.025  # Of the model that holds the interpreter.
HOST = "127.0.0.1"


def identity(row_bytes: int) -> terrace_kv.CacheIdentity:
    return terrace_kv.CacheIdentity(
        model="bench",
        revision="1",
        dtype="int8",
        layout="none",
        layout_version=1,
        tokens_per_chunk=16,
        chunk_bytes=row_bytes,
        shard_index=0,
        shard_count=1,
        engine="bench",
    )


def terrace_manager(chunks: int, row_bytes: int, tiers: list[dict[str, Any]], interval_s: float = 0.0) -> Any:
    from terrace_kv.vllm.manager import ANSWERS, TerraceOffloadingManager

    config = {
        "cpu_bytes_to_use": chunks * row_bytes,
        "prefault_threads": 0,
        "secondary_tiers": tiers,
        "tier_poll_interval_s": interval_s,
    }
    return TerraceOffloadingManager(terrace_kv.Node(config, identity(row_bytes), answers=ANSWERS))


def reference_manager(chunks: int, row_bytes: int, make_tiers: Any, interval_s: float = 0.0) -> Any:
    """vLLM's manager of tiers; `make_tiers(spec, view)` makes those."""
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=row_bytes,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="bench",
        model=OffloadingModelConfig(name="bench", dtype="int8"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )
    spec = SimpleNamespace(
        config=config,
        blocks_per_chunk=1,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False),
    )
    # Whole pages, as O_DIRECT needs.
    view = memoryview(mmap.mmap(-1, chunks * row_bytes)).cast("b", (chunks, row_bytes))
    region = SimpleNamespace(create_kv_memoryview=lambda: view, cleanup=lambda: None)
    primary = CPUPrimaryTierOffloadingManager(num_chunks=chunks, mmap_region=region)
    return TieringOffloadingManager(
        primary_tier=primary, secondary_tiers=make_tiers(spec, view), tier_poll_interval_s=interval_s
    )


def make_tiering(side: str, chunks: int, directory: str | None, row_bytes: int) -> Any:
    """A manager with a file tier in `directory`, or with none."""
    if side == "terrace":
        tiers = [{"type": "file", "root_dir": directory, "n_read_threads": 16, "n_write_threads": 16}]
        return terrace_manager(chunks, row_bytes, tiers if directory else [])

    def make_tiers(spec: Any, view: memoryview) -> list[Any]:
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        if directory is None:
            return []
        return [FileSystemTierManager(spec, view, "fs", root_dir=directory)]

    return reference_manager(chunks, row_bytes, make_tiers)


# ---- a neighbour asks while the engine's thread holds the interpreter in one long call ----


def _long_call() -> Any:
    """One call of C that keeps the interpreter for about STEP_S."""
    chosen = random.Random(5)
    count = 20_000
    while True:
        values = [chosen.random() for _ in range(count)]
        took = []
        for _ in range(3):
            began = time.perf_counter()
            sorted(values)
            took.append(time.perf_counter() - began)
        if min(took) >= STEP_S * 0.9:
            return lambda: sorted(values)
        count = int(count * 1.2)


def _store(manager: Any, keys: list[bytes]) -> None:
    from vllm.v1.kv_offload.base import ReqContext

    request = ReqContext(req_id="stored")
    with manager.lock:
        manager.on_new_request(request)
        plan = manager.prepare_store(keys, request)
        manager.complete_store(set(plan.keys_to_store), request)
        manager.on_request_finished(request)


def _busy_source(manager: Any, ready: Any, done: Any) -> None:
    from vllm.v1.kv_offload.base import ScheduleEndContext

    step = _long_call()
    ready.set()
    while not done.is_set():
        with manager.lock:
            manager.on_schedule_end(ScheduleEndContext((), ()))
        step()
    manager.shutdown()


def _terrace_source(keys: list[bytes], port: int, ready: Any, done: Any) -> None:
    manager = terrace_manager(len(keys), 4096, [{"type": "peer", "host": HOST, "port": port}], 0.001)
    _store(manager, keys)
    _busy_source(manager, ready, done)


def _terrace_asks(keys: list[bytes], port: int) -> list[float]:
    node = terrace_kv.Node(
        {
            "cpu_bytes_to_use": len(keys) * 4096,
            "prefault_threads": 0,
            "secondary_tiers": [{"type": "peer", "host": HOST, "port": port + 1, "peers": [f"{HOST}:{port}"]}],
        },
        identity(4096),
    )
    manager, waits = node.manager, []
    time.sleep(1)  # The session opens.
    for number, key in enumerate(keys):
        began = time.perf_counter()
        while True:
            with manager.lock:
                answer = manager.lookup(key, f"r{number}")
                manager.on_schedule_end()
            if answer is not terrace_kv.LookupResult.RETRY:
                break
            node.wait_for_progress(0.05)
        waits.append(time.perf_counter() - began)
        assert answer is not terrace_kv.LookupResult.MISS, "the source does not have it"
        manager.on_request_finished(f"r{number}")
        time.sleep(0.005)
    node.shutdown()
    return waits


def _reference_source(keys: list[bytes], port: int, ready: Any, done: Any) -> None:
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, RequestOffloadingContext
    from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

    class Asked(SecondaryTierManager):
        """Answers a datagram with a key by a byte, from vLLM's poll thread."""

        tolerates_off_thread_polling = True

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind((HOST, port))
            self._socket.setblocking(False)
            self._number = 0

        def serve_external_requests(self, parent: Any) -> None:
            while True:
                try:
                    key, peer = self._socket.recvfrom(100)
                except BlockingIOError:
                    return
                self._number += 1
                request = ReqContext(req_id=f"asked-{self._number}")
                parent.on_new_request(request)
                found = parent.lookup(key, request) is LookupResult.HIT
                parent.on_request_finished(request)
                self._socket.sendto(b"1" if found else b"0", peer)

        def lookup(self, key: bytes, req_context: Any) -> Any:
            return LookupResult.MISS

        def submit_store(self, job_metadata: Any) -> None:
            pass

        submit_load = submit_store

        def get_finished_jobs(self) -> list[Any]:
            return []

        def on_new_request(self, req_context: Any) -> Any:
            return RequestOffloadingContext()

        def drain_jobs(self) -> None:
            pass

    manager = reference_manager(len(keys), 64, lambda spec, view: [Asked(spec, view, "asked")], 0.001)
    _store(manager, keys)
    _busy_source(manager, ready, done)


def _reference_asks(keys: list[bytes], port: int) -> list[float]:
    waits = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(10)
        for key in keys:
            began = time.perf_counter()
            asker.sendto(key, (HOST, port))
            answer = asker.recv(10)
            waits.append(time.perf_counter() - began)
            assert answer == b"1", "the source does not have it"
            time.sleep(0.005)
    return waits


def external_rows(report: Report, asked: int) -> None:
    """How long a neighbour's look-up takes meanwhile."""
    from vllm_bench import keys_from

    spawn = multiprocessing.get_context("spawn")
    keys = keys_from(0, asked)
    p99, median = {}, {}
    for side, source, asks in (
        ("terrace", _terrace_source, _terrace_asks),
        ("reference", _reference_source, _reference_asks),
    ):
        port = 21000 + os.getpid() % 8000 * 2
        ready, done = spawn.Event(), spawn.Event()
        process = spawn.Process(target=source, args=(keys, port, ready, done), daemon=True)
        process.start()
        assert ready.wait(120), "the source does not start"
        with spawn.Pool(1) as pool:
            waits = sorted(pool.apply(asks, (keys, port)))
        done.set()
        process.join(30)
        median[side] = statistics.median(waits) * 1e3
        p99[side] = waits[int(len(waits) * 0.99)] * 1e3
    report.limit("a neighbour asks, interpreter held: median", median["terrace"], median["reference"], "ms", 2)
    report.limit("a neighbour asks, interpreter held: p99", p99["terrace"], p99["reference"], "ms", 2)


# ---- real vLLMs ----


def engine_rows(report: Report, repeats: int) -> None:
    """Time to first token of a prompt of 4000 tokens, from host memory and from files that the page cache has lost."""
    from engine.make_model import make_model
    from engine.vllm_run import run

    prompt = [1, 4000]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TERRACE_BENCH_DIR")) as directory:
        model = os.path.join(directory, "model")
        make_model(model)
        took: dict[str, dict[str, float]] = {}
        for side in ("terrace", "reference"):
            extra: dict[str, Any] = {"cpu_bytes_to_use": 400_000_000}
            root = os.path.join(directory, side)
            if side == "terrace":
                extra["secondary_tiers"] = [
                    {"type": "file", "root_dir": root, "n_read_threads": 16, "n_write_threads": 16}
                ]
            else:
                extra["secondary_tiers"] = [{"type": "fs", "root_dir": root}]
                extra |= {"spec_name": "ReferenceSpec", "spec_module_path": "vllm_specs"}
            steps: list[dict[str, Any]] = [{"do": "generate", "name": "first", "prompts": [prompt], "out": 1}]
            for kind in ("host", "file"):
                for number in range(repeats):
                    steps.append({"do": "reset", "host": kind == "file"})
                    if kind == "file":
                        steps.append({"do": "drop_cached_files", "folder": root})
                    steps.append({"do": "generate", "name": f"{kind} {number}", "prompts": [prompt], "out": 1})
            said = run(
                {"model": model, "extra": extra, "steps": steps},
                Path(directory),
                side,
                {"PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])},
            )
            took[side] = {
                kind: statistics.median(said[f"{kind} {number}"]["s"] for number in range(repeats))
                for kind in ("host", "file")
            }
            for kind in ("host", "file"):
                cached = [said[f"{kind} {number}"]["cached"][0] for number in range(repeats)]
                each = [round(said[f"{kind} {number}"]["s"] * 1e3) for number in range(repeats)]
                print(
                    f"{side}: {kind}: {each} ms, cached {cached}; computing took {said['first']['s']:.2f} s",
                    file=sys.stderr,
                )
    for kind in ("host", "file"):
        report.row(f"first token, from {kind}", took["terrace"][kind] * 1e3, took["reference"][kind] * 1e3, "ms", 1.0)


