"""Models whose layers are in three KV-cache groups, two of which see a window alone or have a recurrent state: the
tokens are those of a vLLM without Terrace, wherever the cache came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import LONG, OTHER, SHORT, plain_tokens
from .make_model import HYBRID_WINDOW
from .test_engine import generate, reset
from .vllm_run import run

IN_WINDOW = [4, 200]
FRONT = [1, 700]  # The beginning of LONG.
CROWD = [[60, 620], [61, 620], [62, 620], [63, 620]]  # Each needs another block on its way.
GROUPS = {"do": "groups"}


@pytest.fixture(scope="module")
def expected(hybrid_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    prompts = [LONG, OTHER, SHORT, IN_WINDOW, FRONT, *CROWD]
    return plain_tokens(hybrid_model, tmp_path_factory.mktemp("plain"), prompts)


def check_against_vllms_own(model: str, expected: dict, directory: Path, name: str, steps: list[dict]) -> dict[str, dict]:
    """What Terrace's session said: the tokens are those expected, the hits as many as with vLLM's own manager."""
    reference = {"spec_name": "ReferenceSpec", "spec_module_path": "reference_spec"}
    said = []
    for kind, spec in (("file", {}), ("fs", reference)):
        tier = {"type": kind, "root_dir": str(directory / kind), "n_read_threads": 2, "n_write_threads": 2}
        extra = {"cpu_bytes_to_use": 200_000_000, "secondary_tiers": [tier], **spec}
        said.append(run({"model": model, "extra": extra, "steps": steps}, directory, f"{name}-{kind}"))
    ours, theirs = said
    for step in steps:
        if step["do"] != "generate":
            continue
        one = step["name"]
        assert ours[one]["tokens"] == [expected[str(prompt)] for prompt in step["prompts"]], one
        assert ours[one]["cached"] == theirs[one]["cached"], one
    return ours


def test_host_then_file_then_a_new_process(hybrid_model: str, expected: dict, tmp_path: Path) -> None:
    steps = [
        GROUPS,
        generate("first", LONG),
        reset(host=False),
        generate("host", LONG),
        reset(host=True),
        generate("file", LONG),
        generate("in window", IN_WINDOW),
        {"do": "abort", "seed": 50, "tokens": 1200, "after_steps": [1, 2, 3]},
        generate("other", OTHER),
        {"do": "settle"},
    ]
    said = check_against_vllms_own(hybrid_model, expected, tmp_path, "one", steps)
    assert sorted(said["groups"]["windows"], key=str) == [HYBRID_WINDOW, HYBRID_WINDOW, None]
    assert said["first"]["cached"] == [0]
    assert said["host"]["cached"] == said["file"]["cached"] == [1408]

    steps = [
        generate("in window", IN_WINDOW),
        generate("front", FRONT),
        {"do": "settle"},
        reset(host=True),
        generate("front again", FRONT),
        generate("file", LONG),
        generate("two at once", OTHER, LONG),
    ]
    said = check_against_vllms_own(hybrid_model, expected, tmp_path, "two", steps)
    assert said["in window"]["cached"] == [128]
    assert said["front again"]["cached"] == [640]
    assert said["file"]["cached"] == [1408]
    assert said["two at once"]["cached"] == [896, 1408]


@pytest.mark.long
def test_chunks_of_four_blocks_preemption_and_a_host_tier_that_is_too_small(
    hybrid_model: str, expected: dict, tmp_path: Path
) -> None:
    # A block of two layers has 256 KiB, a chunk of four 1 MiB: a host tier of 8, of which LONG takes six, since windows
    # are kept for every chunk and not for its end alone. The window is half a chunk.
    extra = {
        "cpu_bytes_to_use": 8 << 20,
        "blocks_per_chunk": 4,
        "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
    }
    said = run(
        {
            "model": hybrid_model,
            "extra": extra,
            "llm": {
                "num_gpu_blocks_override": 36,
                "max_model_len": 2048,
                "prefix_cache_retention_interval": 512,
            },
            "steps": [
                {"do": "count_preemptions"},
                generate("first", LONG),
                reset(host=False),
                generate("host", LONG),
                reset(host=False),
                generate("front", FRONT),
                generate("crowd", *CROWD, out=40),
                generate("again", LONG),
                reset(host=True),
                generate("after reset", LONG),
                generate("short", SHORT),
                {"do": "settle"},
            ],
        },
        tmp_path,
        "small",
    )
    for step in ("first", "host", "again", "after reset"):
        assert said[step]["tokens"][0] == expected[str(LONG)], step
    assert said["crowd"]["preempted"] > 0
    assert [tokens[:8] for tokens in said["crowd"]["tokens"]] == [expected[str(prompt)] for prompt in CROWD]
    assert said["short"]["tokens"][0] == expected[str(SHORT)]
    assert said["front"]["tokens"][0] == expected[str(FRONT)]
    assert said["host"]["cached"] == [1024]
    assert said["front"]["cached"] == [512]
    assert said["after reset"]["cached"] == [1024]

    again = run({"model": hybrid_model, "extra": extra, "steps": [generate("file", LONG)]}, tmp_path, "new")
    assert again["file"]["cached"] == [1024]
    assert again["file"]["tokens"][0] == expected[str(LONG)]


@pytest.mark.long
def test_two_ranks_in_processes(hybrid_model: str, expected: dict, tmp_path: Path) -> None:
    plan = {
        "model": hybrid_model,
        "processes": True,
        "extra": {
            "cpu_bytes_to_use": 200_000_000,
            "blocks_per_chunk": 2,
            "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
        },
        "llm": {"tensor_parallel_size": 2},
    }
    steps = [generate("first", LONG), reset(host=False), generate("host", LONG), reset(host=True), generate("file", LONG)]
    said = run(plan | {"steps": steps}, tmp_path, "ranks")
    for step in ("first", "host", "file"):
        assert said[step]["tokens"][0] == expected[str(LONG)], step
    assert said["host"]["cached"] == [1280]
    assert said["file"]["cached"] == [1280]


@pytest.mark.long
def test_recurrent_states(recurrent_model: str, tmp_path: Path) -> None:
    expected = plain_tokens(recurrent_model, tmp_path, [LONG, OTHER])
    steps = [
        GROUPS,
        generate("first", LONG),
        reset(host=False),
        generate("host", LONG),
        reset(host=True),
        generate("file", LONG),
        generate("other", OTHER),
    ]
    said = check_against_vllms_own(recurrent_model, expected, tmp_path, "recurrent", steps)
    assert sorted(said["groups"]["kinds"]) == ["FullAttentionSpec", "MambaSpec", "MambaSpec"]
    assert said["host"]["cached"] == said["file"]["cached"] == [1408]
