"""KV events of a real vLLM as a subscriber gets them: those of Terrace's host memory are those of vLLM's own manager."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from .conftest import LONG, OTHER
from .test_engine import generate, reset
from .vllm_run import run

SPECS = {"ours": {}, "theirs": {"spec_name": "ReferenceSpec", "spec_module_path": "reference_spec"}}
FAILURES = "vllm:kv_offload_tiering_promotion_job_failures"
SETTLE = {"do": "settle"}


@contextmanager
def subscribed(endpoint: str) -> Iterator[list[dict[str, Any]]]:
    """The events, in order, once the block has ended; none is missing."""
    events: list[dict[str, Any]] = []
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.set(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(endpoint)
        yield events
        batches = 0
        while socket.poll(1000):
            _, number, payload = socket.recv_multipart()
            assert int.from_bytes(number, "big") == batches, "a batch is missing"
            batches += 1
            events.extend(msgspec.msgpack.decode(payload)[1])


def events_of(
    spec: str, model: str, directory: Path, extra: dict[str, Any], steps: list[dict], tier: dict[str, Any] | None = None
) -> tuple[dict, list[dict]]:
    """What a session said, and the events that a subscriber got."""
    endpoint = f"ipc://{directory}/{spec}.sock"
    tier = {"type": "fs", "n_read_threads": 2, "n_write_threads": 2, **(tier or {}), "root_dir": str(directory / spec)}
    plan = {
        "model": model,
        "extra": {"secondary_tiers": [tier], **extra, **SPECS[spec]},
        "llm": {
            "disable_log_stats": False,
            "kv_events_config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint},
        },
        # When it has settled it has the subscriber.
        "steps": [SETTLE, *steps],
    }
    with subscribed(endpoint) as events:
        said = run(plan, directory, spec)
    return said, events


def of_host_memory(events: list[dict]) -> list[dict]:
    """One for each block, in order."""
    out = []
    for event in events:
        if event.get("medium") != "CPU":
            continue
        if event["type"] == "BlockRemoved":
            out += [event | {"block_hashes": [block]} for block in event["block_hashes"]]
        else:
            out.append(event)
    return out


def blocks_in(events: list[dict]) -> set[bytes]:
    """What a subscriber believes to be there."""
    blocks: set[bytes] = set()
    for event in events:
        if event["type"] == "BlockStored":
            blocks.update(event["block_hashes"])
        else:
            blocks.difference_update(event["block_hashes"])
    return blocks


@pytest.mark.parametrize("described", [False, True])
def test_stores_and_evictions_are_said_as_vllms_own_manager_says_them(model: str, tmp_path: Path, described: bool) -> None:
    # A block has 512 KiB: of chunks of two there is room for nine; LONG takes five, OTHER and the third three each.
    extra = {"cpu_bytes_to_use": 9 << 20, "blocks_per_chunk": 2, "self_describing_kv_events": described}
    steps = [generate("first", LONG), SETTLE, generate("other", OTHER), SETTLE, generate("third", [60, 800]), SETTLE]
    ours, theirs = (of_host_memory(events_of(spec, model, tmp_path, extra, steps)[1]) for spec in SPECS)
    assert {event["type"] for event in ours} == {"BlockStored", "BlockRemoved"}
    assert ours == theirs
    stored = [event for event in ours if event["type"] == "BlockStored"]
    assert len(stored) == 11
    assert {len(event["block_hashes"]) for event in stored} == {2 if described else 1}
    assert {len(event["token_ids"]) for event in stored} == {256 if described else 0}


@pytest.mark.long
def test_promotions_are_said_as_vllms_own_manager_says_them_and_a_reset_besides(
    model: str, expected: dict, tmp_path: Path
) -> None:
    extra = {"cpu_bytes_to_use": 64 << 20, "self_describing_kv_events": True}
    steps = [generate("first", LONG), generate("other", OTHER), reset(host=True), generate("again", LONG), SETTLE]
    ours, theirs = ([], [])
    for spec, events in zip(SPECS, (ours, theirs)):
        said, heard = events_of(spec, model, tmp_path, extra, steps)
        assert said["again"]["tokens"][0] == expected[LONG[0]]
        assert said["again"]["cached"] == [1408]
        events += of_host_memory(heard)
    assert len(theirs) == 11 + 7 + 11
    assert [event for event in ours if event["type"] == "BlockStored"] == theirs
    # vLLM's own does not say what a reset took.
    assert blocks_in(ours) == {block for event in theirs[-11:] for block in event["block_hashes"]}


def test_what_cannot_be_read_is_counted_and_leaves_nothing_in_the_connector(
    model: str, expected: dict, tmp_path: Path
) -> None:
    # Files of vLLM's tier have no checksum, and it notices only when it reads that one is too short.
    extra = {"cpu_bytes_to_use": 64 << 20, "self_describing_kv_events": True}
    tiers = {"ours": {"type": "file"}, "theirs": {}}
    steps = [
        generate("again", LONG, params={"max_offload_tokens": 0}), SETTLE,
        {"do": "tracked", "name": "tracked"},
        {"do": "counters", "name": "counters", "names": [FAILURES]},
    ]  # fmt: skip
    for spec, tier in tiers.items():
        events_of(spec, model, tmp_path, extra, [generate("first", LONG), SETTLE], tier)
        files = [path for path in (tmp_path / spec).rglob("*") if path.is_file() and path.stat().st_size >= 512 << 10]
        assert len(files) == 11
        for path in files:
            if spec == "theirs":
                os.truncate(path, 1000)
            else:
                with path.open("r+b") as file:
                    file.seek(path.stat().st_size // 2)
                    file.write(b"something else")
        said, events = events_of(spec, model, tmp_path, extra, steps, tier)
        assert said["again"]["tokens"][0] == expected[LONG[0]], spec
        assert said["again"]["cached"] == [0], spec
        assert said["counters"]["counters"][FAILURES] > 0, spec
        assert of_host_memory(events) == [], spec
        assert said["tracked"]["chunks"] == 0, spec
