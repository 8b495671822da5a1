# vllm_matrix: a busy neighbour in real vLLM: look-up and first token, Terrace beside vLLM's own p2p tier
"""Two vLLMs: a source that computed long prompts, and a sink that fetches them while the source is idle or busy.

    bench/run vllm_matrix [--quick] [--json FILE]

Arms: Terrace's peer tier and vLLM's own p2p tier, each with the control thread and without (per step). `cold` is the first
fetch of a sink, `warm` the others. Busy: the source prefills other long prompts all the time. Some 15 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python" / "tests")]
ARMS = (
    ("terrace", "control thread", 0.001),
    ("terrace", "per step", 0.0),
    ("vllm", "control thread", 0.001),
    ("vllm", "per step", 0.0),
)


def extra(side: str, interval_s: float, port: int) -> dict[str, Any]:
    return {
        "spec_name": "TimedTerraceSpec" if side == "terrace" else "ReferenceSpec",
        "spec_module_path": "vllm_specs",
        "cpu_bytes_to_use": 600_000_000,
        "tier_poll_interval_s": interval_s,
        "secondary_tiers": [{"type": "p2p", "host": "127.0.0.1", "port": port}],
    }


def run_arm(
    model: str, directory: Path, number: int, side: str, interval_s: float, tokens: int, repeats: int
) -> dict[str, Any]:
    from engine.vllm_run import Running

    port = 22000 + (os.getpid() % 4000) * 4 + number * 2
    ready, busy, done = (directory / f"{number}-{name}" for name in ("ready", "busy", "done"))
    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")]),
        "UCX_TLS": "tcp,self",
        "TERRACE_LOG_LEVEL": "warning",
    }
    # Each sink has prompts of its own, which the source had before.
    prompts = {"idle": [[100 + i, tokens] for i in range(repeats + 1)], "busy": [[200 + i, tokens] for i in range(repeats + 1)]}
    batched = 512
    source = Running(
        {
            "model": model,
            "processes": True,
            "extra": extra(side, interval_s, port),
            "llm": {"max_num_batched_tokens": batched},
            "steps": [
                *({"do": "generate", "name": f"source {one[0]}", "prompts": [one], "out": 1}
                  for one in prompts["idle"] + prompts["busy"]),
                {"do": "settle"},
                {"do": "raise_file", "file": str(ready)},
                {"do": "await_file", "file": str(busy), "s": 900},
                {"do": "busy_until", "file": str(done), "seed": 900, "tokens": 4 * batched, "batched": batched},
            ],
        },
        directory,
        f"source-{number}",
        env,
    )  # fmt: skip
    out: dict[str, Any] = {"side": side, "interval_s": interval_s}
    try:
        for state in ("idle", "busy"):
            if state == "busy":
                busy.touch()
                time.sleep(3)
            steps: list[dict[str, Any]] = [{"do": "await_file", "file": str(ready), "s": 900}]
            for one in prompts[state]:
                params = {
                    "remote_kv_source": {
                        "kv_request_id": f"{state}-{one[0]}",
                        "remote_host": "127.0.0.1",
                        "remote_port": port,
                    }
                }
                steps.append({"do": "generate", "name": f"fetch {one[0]}", "prompts": [one], "out": 1, "params": params})
            sink = Running(
                {
                    "model": model,
                    "extra": extra(side, 0.001, port + 1),
                    "llm": {"max_num_batched_tokens": batched},
                    "steps": steps,
                },
                directory,
                f"sink-{number}-{state}",
                {**env, "TERRACE_TIME_LOOKUPS": "1"},
            )
            try:
                said = sink.wait(900)
            finally:
                sink.stop()
            lookups = [one["s"] for one in said if one["step"] == "lookup"]
            fetches = [one for one in said if one["step"].startswith("fetch")]
            first_tokens = [one["s"] for one in fetches]
            out[state] = {
                "lookup_s": {"cold": lookups[0], "warm": lookups[1:]},
                "ttft_s": {"cold": first_tokens[0], "warm": first_tokens[1:]},
                "cached": [one["cached"][0] for one in fetches],
                "tokens": [one["tokens"][0] for one in fetches],
            }
        done.touch()
        said = source.wait(300)
    finally:
        source.stop()
    out["source_step_s"] = next(one["step_s"] for one in said if one["step"] == "busy")
    computed = [one["tokens"][0] for one in said if one["step"].startswith("source")]
    out["answers_identical"] = out["idle"]["tokens"] + out["busy"]["tokens"] == computed
    out["recompute_s"] = statistics.median(one["s"] for one in said if one["step"].startswith("source"))
    return out


def milliseconds(values: list[float]) -> str:
    ordered = sorted(one * 1e3 for one in values)
    return f"{statistics.median(ordered):8.1f} ({ordered[0]:.1f} .. {ordered[-1]:.1f})"


def show(arm: dict[str, Any], thread: str) -> None:
    name = {"terrace": "Terrace", "vllm": "vLLM p2p"}[arm["side"]]
    for state in ("idle", "busy"):
        cell = arm[state]
        cold_lookup, cold_ttft = cell["lookup_s"]["cold"] * 1e3, cell["ttft_s"]["cold"] * 1e3
        print(
            f"{name:9} {thread:15} {state:5} {milliseconds(cell['lookup_s']['warm']):32} {cold_lookup:9.1f}   "
            f"{milliseconds(cell['ttft_s']['warm']):32} {cold_ttft:9.1f}   {min(cell['cached'])}",
            flush=True,
        )
    warm = {
        state: statistics.median(arm[state]["ttft_s"]["warm"]) for state in ("idle", "busy")
    }
    same = "the same" if arm["answers_identical"] else "NOT the same"
    print(
        f"{name:9} {thread:15} penalty of a busy source {warm['busy'] / warm['idle']:.2f}; its step "
        f"{arm['source_step_s']:.2f} s; computing {arm['recompute_s']:.2f} s; answers {same}",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(prog="bench/run vllm_matrix")
    arguments.add_argument("--quick", action="store_true", help="a smaller model, fewer repetitions")
    arguments.add_argument("--json", metavar="FILE")
    arguments.add_argument("--arm", type=int, action="append", help="only these: 0 to 3")
    chosen = arguments.parse_args()
    layers, hidden, tokens, repeats = (8, 512, 1024, 3) if chosen.quick else (12, 1024, 1024, 5)
    arms = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TERRACE_BENCH_DIR")) as where:
        from engine.make_model import make_model

        directory = Path(where)
        model = str(directory / "model")
        make_model(model, layers, hidden)
        print(f"{'':31} {'look-up ms, warm (min .. max)':32} {'cold':>9}   {'first token ms, warm':32} {'cold':>9}   cached")
        for number, (side, thread, interval_s) in enumerate(ARMS):
            if chosen.arm and number not in chosen.arm:
                continue
            arm = run_arm(model, directory, number, side, interval_s, tokens, repeats)
            show(arm, thread)
            arms.append({**arm, "thread": thread})
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(arms, indent=1))


if __name__ == "__main__":
    main()
