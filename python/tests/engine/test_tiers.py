"""vLLM's own secondary tiers on Terrace's manager in a real vLLM; fs and p2p are in test_engine.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import LONG, OTHER
from .object_store import ObjectStore, plugin_libraries
from .test_engine import HOST_BYTES, generate, reset
from .vllm_run import run, run_pair

REFERENCE = {"spec_name": "ReferenceSpec", "spec_module_path": "reference_spec"}


def extra_of(*tiers: dict, **more) -> dict:
    return {"cpu_bytes_to_use": HOST_BYTES, "secondary_tiers": list(tiers), **more}


@pytest.fixture(scope="session")
def obj_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = plugin_libraries(tmp_path_factory.mktemp("libraries"))
    return {} if directory is None else {"LD_LIBRARY_PATH": f"{directory}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


@pytest.mark.long
def test_vllms_obj_tier_on_either_manager_shares_a_bucket(
    model: str, expected: dict, tmp_path: Path, obj_env: dict[str, str]
) -> None:
    with ObjectStore() as store:
        tier = {"type": "obj", "store_config": store.config, "prefix": "cache"}
        ours = run(
            {
                "model": model,
                "extra": extra_of(tier),
                "steps": [generate("first", LONG), reset(host=True), generate("object", LONG), {"do": "settle"}],
            },
            tmp_path,
            "ours",
            obj_env,
        )
        assert ours["first"]["cached"] == [0]
        assert ours["object"]["cached"][0] >= 1400
        assert ours["object"]["tokens"][0] == expected[LONG[0]]
        theirs = run(
            {
                "model": model,
                "extra": extra_of(tier, **REFERENCE),
                "steps": [generate("ours", LONG), generate("other", OTHER), {"do": "settle"}],
            },
            tmp_path,
            "theirs",
            obj_env,
        )
        assert theirs["ours"]["cached"] == ours["object"]["cached"]
        assert theirs["ours"]["tokens"][0] == expected[LONG[0]]
        # By name, and by path as an out-of-tree tier.
        by_path = {"type": "ObjectStoreSecondaryTierManager", "module_path": "vllm.v1.kv_offload.tiering.obj.manager"}
        again = run(
            {"model": model, "extra": extra_of({**tier, **by_path}), "steps": [generate("theirs", OTHER)]},
            tmp_path,
            "again",
            obj_env,
        )
        assert again["theirs"]["cached"][0] >= 800
        assert again["theirs"]["tokens"][0] == expected[OTHER[0]]


def kvcr(port: int, **more) -> dict:
    return {
        "type": "kvcr",
        "router_capabilities": ["router_hint"],
        "control_host": "127.0.0.1",
        "control_advertise_host": "127.0.0.1",
        "control_ports": [port],
        # In this time it must be polled, or it is out of work for good.
        "operation_timeout_ms": 30_000,
        "abandon_timeout_ms": 90_000,
        **more,
    }


@pytest.fixture
def port() -> int:
    return 20000 + os.getpid() % 10000


@pytest.mark.long
def test_vllms_kvcr_tier_keeps_chunks_in_memory_and_files(
    model: str, expected: dict, tmp_path: Path, port: int
) -> None:
    pytest.importorskip("kvcr")
    # A block has 512 KiB, the prompts have 11 and 7: memory for 12 of them keeps what is asked for last.
    files = {"paths": [str(tmp_path / "chunks")], "capacity_bytes_per_file": 64 << 20, "backend": "POSIX"}
    said = run(
        {
            "model": model,
            "extra": extra_of(kvcr(port, secondary_g2_slots=12, g3=files, enable_telemetry=True)),
            "steps": [
                generate("first", LONG),
                reset(host=True),
                generate("memory", LONG),
                generate("other", OTHER),
                reset(host=True),
                generate("file", LONG),
            ],
        },
        tmp_path,
        "kept",
    )
    for step in ("memory", "file"):
        assert said[step]["cached"][0] >= 1400, step
        assert said[step]["tokens"][0] == expected[LONG[0]], step
    assert (tmp_path / "chunks").stat().st_size > 0


@pytest.mark.long
def test_vllms_kvcr_tier_brings_what_a_neighbour_has(model: str, expected: dict, tmp_path: Path, port: int) -> None:
    pytest.importorskip("kvcr")
    env = {"UCX_TLS": "tcp,self"}  # It takes the first that it finds.
    served, done = tmp_path / "served", tmp_path / "done"
    # Without memory of its own, so that it fails each of the engine's stores: host memory is what it serves. The source
    # is idle while it does.
    source = {
        "model": model,
        "processes": True,
        "extra": extra_of(kvcr(port)),
        "steps": [
            generate("source", LONG),
            *[generate(f"more {seed}", [seed, 300]) for seed in range(70, 74)],
            {"do": "settle"},
            {"do": "raise_file", "file": str(served)},
            {"do": "await_file", "file": str(done)},
        ],
    }
    hint = {"source_control_endpoint": f"tcp://127.0.0.1:{port}", "block_hashes": [1]}
    asker = {
        "model": model,
        "extra": extra_of(kvcr(port + 1)),
        "steps": [
            {"do": "await_file", "file": str(served)},
            # Nobody has these: what kvcr finds of them by its hint it does not bring.
            *[{"do": "hinted", "name": f"none {seed}", "prompt": [seed, 300], "fetch": hint} for seed in range(80, 84)],
            {"do": "hinted", "name": "sink", "prompt": LONG, "fetch": hint},
            {"do": "raise_file", "file": str(done)},
        ],
    }
    _, sink = run_pair(source, asker, tmp_path, env)
    assert sink["none 80"]["cached"] == 0
    assert sink["sink"]["cached"] >= 1400
    assert sink["sink"]["tokens"] == expected[LONG[0]]


def test_vllms_example_tier_finds_what_it_was_given(model: str, tmp_path: Path) -> None:
    # It keeps no bytes, so that the tokens mean nothing.
    said = run(
        {
            "model": model,
            "extra": extra_of({"type": "example", "custom_param": 7}),
            "steps": [generate("first", LONG), reset(host=True), generate("again", LONG)],
        },
        tmp_path,
        "example",
    )
    assert said["first"]["cached"] == [0]
    assert said["again"]["cached"][0] >= 1400
