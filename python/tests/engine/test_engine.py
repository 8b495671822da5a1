"""Terrace inside a real vLLM: the tokens are those of a vLLM without it, wherever the cache came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import LONG, OTHER, SHORT
from .vllm_run import Running, run, run_pair, wait_for_nobody

HOST_BYTES = 200_000_000


def generate(name: str, *prompts: list[int], **more) -> dict:
    return {"do": "generate", "name": name, "prompts": list(prompts), **more}


def reset(host: bool) -> dict:
    return {"do": "reset", "host": host}


def end_of(session: Running) -> tuple[dict[str, dict], list[int]]:
    """What it said, by step, and which of its processes outlived it: unlike session.wait(), it lets them."""
    try:
        assert session.process.wait(400) == 0, session.log()[-5000:]
        left = wait_for_nobody(session.process.pid, 30)
    finally:
        session.stop()
    return {one["step"]: one for one in session.said()}, left


def test_host_then_file_then_a_new_process(model: str, expected: dict, tmp_path: Path) -> None:
    extra = {
        "cpu_bytes_to_use": HOST_BYTES,
        "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
    }
    said = run(
        {
            "model": model,
            "extra": extra,
            "steps": [
                generate("first", LONG),
                reset(host=False),
                generate("host", LONG),
                reset(host=True),
                generate("file", LONG),
                {"do": "abort", "seed": 50, "tokens": 1200, "after_steps": [1, 2, 3]},
                generate("other", OTHER),
                {"do": "settle"},
            ],
        },
        tmp_path,
        "one",
    )
    for step in ("first", "host", "file"):
        assert said[step]["tokens"][0] == expected[LONG[0]], step
    assert said["other"]["tokens"][0] == expected[OTHER[0]]
    assert said["first"]["cached"] == [0]
    assert said["host"]["cached"][0] >= 1400
    assert said["file"]["cached"][0] >= 1400

    again = run({"model": model, "extra": extra, "steps": [generate("file", LONG)]}, tmp_path, "two")
    assert again["file"]["cached"][0] >= 1400
    assert again["file"]["tokens"][0] == expected[LONG[0]]


@pytest.mark.parametrize("host_chunks", [4, 1])
def test_chunks_of_four_blocks_preemption_and_a_host_tier_that_is_too_small(
    model: str, expected: dict, tmp_path: Path, host_chunks: int
) -> None:
    # A block of this model has 512 KiB, a chunk of four 2 MiB. The long prompt has two of them and a tail: with one in
    # host memory it is longer than that. The crowd's requests each need another block on their way.
    said = run(
        {
            "model": model,
            "extra": {
                "cpu_bytes_to_use": host_chunks << 21,
                "blocks_per_chunk": 4,
                "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
            },
            "llm": {"num_gpu_blocks_override": 20, "max_model_len": 2048, "max_num_batched_tokens": 512},
            "steps": [
                {"do": "count_preemptions"},
                generate("first", LONG),
                {"do": "settle"},
                generate("crowd", OTHER, [60, 620], [61, 620], [62, 620], out=40),
                generate("again", LONG),
                reset(host=True),
                generate("after reset", LONG),
                generate("short", SHORT),
            ],
        },
        tmp_path,
        "small",
    )
    for step in ("first", "again", "after reset"):
        assert said[step]["tokens"][0] == expected[LONG[0]], step
    assert said["crowd"]["preempted"] > 0
    assert said["crowd"]["tokens"][0][:8] == expected[OTHER[0]]
    assert said["short"]["tokens"][0] == expected[SHORT[0]]
    assert said["after reset"]["cached"][0] >= 512


def test_two_ranks_in_processes_and_a_killed_worker(model: str, expected: dict, tmp_path: Path) -> None:
    session = Running(
        {
            "model": model,
            "processes": True,
            "extra": {"cpu_bytes_to_use": HOST_BYTES},
            "llm": {"tensor_parallel_size": 2},
            "steps": [
                generate("first", LONG),
                reset(host=False),
                generate("host", LONG),
                {"do": "kill", "word": "Worker", "one": True},
            ],
        },
        tmp_path,
        "ranks",
    )
    said, left = end_of(session)
    assert said["host"]["cached"][0] >= 1400
    for step in ("first", "host"):
        assert said[step]["tokens"][0] == expected[LONG[0]], step
    assert said["kill"]["killed"] == 1
    assert said["kill"]["raised"] != ""
    assert left == []


@pytest.mark.long
def test_a_worker_killed_while_it_copies_leaves_only_good_files(model: str, expected: dict, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    plan = {
        "model": model,
        "processes": True,
        "extra": {"cpu_bytes_to_use": HOST_BYTES, "secondary_tiers": [{"type": "file", "root_dir": str(tier)}]},
        "llm": {"tensor_parallel_size": 2},
    }
    steps = [
        generate("first", LONG),
        {"do": "settle"},
        {"do": "kill_while_copying", "word": "Worker", "prompts": [LONG, OTHER]},
    ]
    said, left = end_of(Running({**plan, "steps": steps}, tmp_path, "killed"))
    assert said["kill"]["threads"] > 0
    assert said["kill"]["copying"]
    assert said["kill"]["raised"] != ""
    assert left == []
    again = run({**plan, "steps": [generate("long", LONG), generate("other", OTHER)]}, tmp_path, "again")
    assert again["long"]["cached"][0] >= 1400
    assert again["other"]["cached"][0] > 0
    for step, prompt in (("long", LONG), ("other", OTHER)):
        assert again[step]["tokens"][0] == expected[prompt[0]], step


def test_a_killed_core_leaves_nothing(model: str, tmp_path: Path) -> None:
    session = Running(
        {
            "model": model,
            "processes": True,
            "extra": {
                "cpu_bytes_to_use": HOST_BYTES,
                "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
            },
            "steps": [generate("first", OTHER), {"do": "kill", "word": "EngineCore", "quit": True}],
        },
        tmp_path,
        "core",
    )
    said, left = end_of(session)
    assert said["kill"]["killed"] >= 1
    assert left == []
    assert not [path for path in (tmp_path / "tier").rglob("*") if path.name.endswith(".tmp") and path.stat().st_size == 0]


def test_vllms_own_fs_tier_and_ours_share_a_directory(model: str, expected: dict, tmp_path: Path) -> None:
    root = str(tmp_path / "shared")
    written = run(
        {
            "model": model,
            "extra": {
                "cpu_bytes_to_use": HOST_BYTES,
                "secondary_tiers": [
                    {
                        "type": "FileSystemTierManager",
                        "module_path": "vllm.v1.kv_offload.tiering.fs.manager",
                        "root_dir": root,
                        "n_read_threads": 2,
                        "n_write_threads": 2,
                    }
                ],
            },
            "steps": [generate("first", LONG), reset(host=True), generate("theirs", LONG), {"do": "settle"}],
        },
        tmp_path,
        "theirs",
    )
    assert written["theirs"]["cached"][0] >= 1400
    assert written["theirs"]["tokens"][0] == expected[LONG[0]]
    read = run(
        {
            "model": model,
            "extra": {
                "cpu_bytes_to_use": HOST_BYTES,
                "secondary_tiers": [{"type": "fs", "root_dir": root, "n_read_threads": 2, "n_write_threads": 2}],
            },
            "steps": [generate("ours", LONG)],
        },
        tmp_path,
        "ours",
    )
    assert read["ours"]["cached"][0] >= 1400
    assert read["ours"]["tokens"][0] == expected[LONG[0]]


VLLMS_P2P = {"type": "P2PSecondaryTierManager", "module_path": "vllm.v1.kv_offload.tiering.p2p.manager"}


@pytest.mark.parametrize("tier", [{"type": "p2p"}, pytest.param(VLLMS_P2P, marks=pytest.mark.long)], ids=["native", "vllm"])
def test_a_neighbour_has_it(model: str, expected: dict, tmp_path: Path, tier: dict) -> None:
    port = 20000 + os.getpid() % 10000
    env = {"UCX_TLS": "tcp,self"}  # vLLM's tier's library takes the first that it finds.
    served, done = tmp_path / "served", tmp_path / "done"

    def extra(own: int) -> dict:
        return {
            "cpu_bytes_to_use": HOST_BYTES,
            "secondary_tiers": [{**tier, "host": "127.0.0.1", "port": own, "num_threads": 4}],
        }

    _, sink = run_pair(
        {
            "model": model,
            "processes": True,
            "extra": extra(port),
            "steps": [
                generate("source", LONG),
                {"do": "settle"},
                {"do": "raise_file", "file": str(served)},
                {"do": "busy_until", "file": str(done), "seed": 900, "tokens": 2000, "batched": 512},
            ],
        },
        {
            "model": model,
            "extra": extra(port + 1),
            "steps": [
                {"do": "await_file", "file": str(served)},
                generate(
                    "sink",
                    LONG,
                    params={
                        "remote_kv_source": {
                            "kv_request_id": "one",
                            "remote_host": "127.0.0.1",
                            "remote_port": port,
                        }
                    },
                ),
                {"do": "raise_file", "file": str(done)},
            ],
        },
        tmp_path,
        env,
    )
    assert sink["sink"]["cached"][0] >= 1400
    assert sink["sink"]["tokens"][0] == expected[LONG[0]]


READ_BYTES = "vllm:kv_offload_tiering_read_bytes"


@pytest.mark.long
def test_one_prefills_for_another_that_decodes(model: str, expected: dict, tmp_path: Path) -> None:
    """One prompt is prefilled before its decoder asks, the other one after."""
    port = 20000 + os.getpid() % 10000
    env = {"UCX_TLS": "tcp,self"}
    prefilled, done = tmp_path / "prefilled", tmp_path / "done"

    def plan(own: int, steps: list[dict]) -> dict:
        extra = {
            "cpu_bytes_to_use": HOST_BYTES,
            "secondary_tiers": [{"type": "p2p", "host": "127.0.0.1", "port": own}],
        }
        return {"model": model, "processes": True, "extra": extra, "llm": {"disable_log_stats": False}, "steps": steps}

    def prefill(name: str, prompt: list[int]) -> dict:
        return generate(name, prompt, out=1, params={"remote_decoder": {"kv_request_id": f"for {name}"}})

    def decode(name: str, prompt: list[int]) -> dict:
        where = {"kv_request_id": f"for {name}", "remote_host": "127.0.0.1", "remote_port": port}
        return generate(name, prompt, params={"remote_prefiller": where})

    computed, decoder = run_pair(
        plan(
            port,
            [
                prefill("before", LONG),
                {"do": "settle"},
                {"do": "raise_file", "file": str(prefilled)},
                {"do": "await_file", "file": str(done) + ".asked"},
                prefill("after", OTHER),
                {"do": "await_file", "file": str(done)},
            ],
        ),
        plan(
            port + 1,
            [
                {"do": "await_file", "file": str(prefilled)},
                decode("before", LONG),
                {"do": "raise_file", "file": str(done) + ".asked"},
                decode("after", OTHER),
                {"do": "settle"},
                {"do": "counters", "name": "counters", "names": [READ_BYTES]},
                {"do": "raise_file", "file": str(done)},
            ],
        ),
        tmp_path,
        env,
    )
    for step, prompt, chunks in (("before", LONG, 11), ("after", OTHER, 7)):
        assert computed[step]["cached"] == [0], step
        assert computed[step]["tokens"][0] == expected[prompt[0]][:1], step
        assert decoder[step]["cached"] == [128 * chunks], step
        assert decoder[step]["tokens"][0] == expected[prompt[0]], step
    # All that it did not compute was read from its only tier, the peer: a chunk of a block has 512 KiB.
    assert decoder["counters"]["counters"][READ_BYTES] == 18 * (512 << 10)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"cpu_bytes_to_use": "lots", "secondary_tiers": [{"type": "file", "colour": 1}], "evction_policy": "lru"},
            ['cpu_bytes_to_use: "lots" is not a size', "secondary_tiers[0].root_dir: is missing", "evction_policy: is not a known key"],
        ),
    ],
)
def test_every_wrong_key_is_named_at_once(model: str, tmp_path: Path, extra: dict, said: list[str]) -> None:
    session = Running({"model": model, "extra": extra, "steps": []}, tmp_path, "wrong")
    with pytest.raises(AssertionError):
        session.wait(200)
    for words in said:
        assert words in session.log()
