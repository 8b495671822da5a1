"""An engine in Python embeds Terrace: stores the chunks of a prompt, loads them back, finds them after a restart.

    pip install ./python
    python examples/python/embed.py
"""

from __future__ import annotations

import hashlib
import tempfile

import terrace_kv

CHUNK_BYTES = 64 * 1024
TOKENS_PER_CHUNK = 16


def make_node(directory: str) -> terrace_kv.Node:
    identity = terrace_kv.CacheIdentity(
        model="example",
        revision="1",
        dtype="float16",
        layout="one block of bytes",
        layout_version=1,
        tokens_per_chunk=TOKENS_PER_CHUNK,
        chunk_bytes=CHUNK_BYTES,
        shard_index=0,
        shard_count=1,
        engine="examples/python/embed.py",
    )
    config = {"cpu_bytes_to_use": "16MiB", "secondary_tiers": [{"type": "file", "root_dir": directory}]}
    return terrace_kv.Node(config, identity)


def keys_of_prompt(tokens: list[int]) -> list[bytes]:
    """The name of a chunk commits to every token before it."""
    keys, parent = [], b""
    for begin in range(0, len(tokens) - TOKENS_PER_CHUNK + 1, TOKENS_PER_CHUNK):
        parent = hashlib.sha256(parent + repr(tokens[begin : begin + TOKENS_PER_CHUNK]).encode()).digest()
        keys.append(terrace_kv.key_of(parent))
    return keys


def store(node: terrace_kv.Node, keys: list[bytes]) -> int:
    """What a step of an engine that computed the prompt does."""
    slots_of = memoryview(node.memory).cast("B")
    stride = node.memory.stride_bytes
    with node.manager.lock:
        plan = node.manager.prepare_store(keys, "first")
    if plan is None:
        return 0  # No room now: offer again in the next step.
    new, slots, _ = plan
    for key, slot in zip(new, slots):
        slots_of[slot * stride : slot * stride + CHUNK_BYTES] = key[:32] * (CHUNK_BYTES // 32)
    with node.manager.lock:
        node.manager.complete_store(new, "first")
        node.manager.on_request_finished("first")
        node.manager.on_schedule_end()
    return len(new)


def load(node: terrace_kv.Node, keys: list[bytes]) -> int:
    """How many chunks the cache had, all of them as they were stored."""
    manager, found = node.manager, 0
    waiting = True
    while waiting:
        # One hold of the lock: what lookup() said is a hit still is one in prepare_load().
        with manager.lock:
            answers = [manager.lookup(key, "second") for key in keys]
            waiting = any(one in (terrace_kv.LookupResult.HIT_PENDING, terrace_kv.LookupResult.RETRY) for one in answers)
            hits = next((i for i, one in enumerate(answers) if one is not terrace_kv.LookupResult.HIT), len(keys))
            slots = [] if waiting else manager.prepare_load(keys[:hits], "second")
            manager.on_schedule_end()
        if waiting:
            node.wait_for_progress(1.0)  # A tier is bringing some of them.
    slots_of = memoryview(node.memory).cast("B")
    for key, slot in zip(keys, slots):
        at = slot * node.memory.stride_bytes
        found += slots_of[at : at + CHUNK_BYTES] == key[:32] * (CHUNK_BYTES // 32)
    with manager.lock:
        manager.complete_load(keys[: len(slots)], "second")
        manager.on_request_finished("second")
    return found


def main() -> None:
    keys = keys_of_prompt(list(range(40 * TOKENS_PER_CHUNK)))
    with tempfile.TemporaryDirectory() as directory:
        with make_node(directory) as node:
            print(f"stored {store(node, keys)} chunks")
            print(f"loaded {load(node, keys)} from host memory")
            node.drain(10)
        with make_node(directory) as node:
            print(f"loaded {load(node, keys)} after a restart, from disk")


if __name__ == "__main__":
    main()
