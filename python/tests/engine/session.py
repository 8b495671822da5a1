"""One vLLM, driven by a plan: what the tests of a real engine run in a process of its own.

    python session.py PLAN.json

The plan is {"model", "processes": bool, "llm": {...}, "extra": {...} or null, "steps": [...]}; each step prints a line
that begins with "@@ " and is JSON. Prompts are [seed, tokens]: random tokens, the same for the same seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def prompt_of(seed: int, tokens: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(3, 31000) for _ in range(tokens)]


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            below += [child, *children_of(child)]
    return below


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def say(**what: Any) -> None:
    print("@@ " + json.dumps(what), flush=True)


class Session:
    def __init__(self, plan: dict[str, Any]) -> None:
        from vllm import LLM

        arguments: dict[str, Any] = {
            "model": plan["model"],
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 4608,
            "max_num_batched_tokens": 512,
        }
        if plan["extra"] is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "spec_name": "TerraceOffloadingSpec",
                    "spec_module_path": "terrace_kv.vllm",
                    **plan["extra"],
                },
            }
        arguments.update(plan.get("llm", {}))
        self.preempted = 0
        began = time.monotonic()
        self.llm = LLM(**arguments)
        say(step="start", s=time.monotonic() - began)

    def _scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def _sampling(self, step: dict[str, Any], out: int) -> Any:
        from vllm import SamplingParams

        params = step.get("params")
        return SamplingParams(
            temperature=0,
            max_tokens=out,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": params} if params else None,
        )

    def generate(self, step: dict[str, Any]) -> None:
        prompts = [{"prompt_token_ids": prompt_of(*one)} for one in step["prompts"]]
        before = self.preempted
        began = time.monotonic()
        outputs = self.llm.generate(prompts, self._sampling(step, step.get("out", 8)), use_tqdm=False)
        say(
            step=step["name"],
            s=time.monotonic() - began,
            cached=[one.num_cached_tokens for one in outputs],
            tokens=[list(one.outputs[0].token_ids) for one in outputs],
            preempted=self.preempted - before,
        )

    def hinted(self, step: dict[str, Any]) -> None:
        """One prompt with a router's hint where its chunks are, in process."""
        from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

        fetch = KvHintAction(action_id="1", action_type="kv.fetch", action_version="1.0", payload=step["fetch"])
        engine = self.llm.llm_engine
        engine.add_request(
            step["name"],
            {"prompt_token_ids": prompt_of(*step["prompt"])},
            self._sampling(step, 8),
            kv_hints=KvHintsEnvelope(protocol_version="0.1", message_id="1", actions=[fetch]),
        )
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    tokens = list(output.outputs[0].token_ids)
                    say(step=step["name"], cached=output.num_cached_tokens, tokens=tokens)

    def settle(self, step: dict[str, Any]) -> None:
        """A step of the engine, so that what was put off to it is done, and time for the tiers."""
        self.llm.generate([{"prompt_token_ids": prompt_of(9, 40)}], self._sampling(step, 1), use_tqdm=False)
        time.sleep(step.get("s", 0.5))
        self.llm.generate([{"prompt_token_ids": prompt_of(9, 40)}], self._sampling(step, 1), use_tqdm=False)

    def reset(self, step: dict[str, Any]) -> None:
        if step.get("settle", True):
            self.settle(step)
        say(step="reset", ok=self.llm.reset_prefix_cache(reset_connector=step["host"]))

    def drop_cached_files(self, step: dict[str, Any]) -> None:
        """What the page cache has of the files of a folder is written and forgotten."""
        for folder, _, names in os.walk(step["folder"]):
            for name in names:
                try:
                    file = os.open(os.path.join(folder, name), os.O_RDONLY)
                except FileNotFoundError:
                    continue
                try:
                    os.fsync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)

    def abort(self, step: dict[str, Any]) -> None:
        """Aborts requests after some steps each, in process."""
        engine = self.llm.llm_engine
        for number, steps in enumerate(step["after_steps"]):
            name = f"aborted-{number}"
            prompt = {"prompt_token_ids": prompt_of(step["seed"] + number, step["tokens"])}
            engine.add_request(name, prompt, self._sampling(step, 64))
            for _ in range(steps):
                engine.step()
            engine.abort_request([name])
        while engine.has_unfinished_requests():
            engine.step()
        say(step="abort")

    def kill(self, step: dict[str, Any]) -> None:
        """kill -9 of the processes whose command has a word, then a prompt; with "quit" the session ends there."""
        found = [pid for pid in children_of(os.getpid()) if step["word"] in command_of(pid)]
        victims = found[-1:] if step.get("one") else found
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if step.get("quit"):
            time.sleep(2)
            say(step="kill", killed=len(victims))
            os._exit(0)
        raised = ""
        try:
            self.generate({"name": "after the kill", "prompts": [[3, 300]]})
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
        say(step="kill", killed=len(victims), raised=raised)

    def kill_while_copying(self, step: dict[str, Any]) -> None:
        """Generates "prompts" again and again, those that come again from host memory, and kills the last process whose
        command has a word when one of its copying threads runs."""
        victim = [pid for pid in children_of(os.getpid()) if step["word"] in command_of(pid)][-1]
        stats = []
        for task in Path(f"/proc/{victim}/task").iterdir():
            if (task / "comm").read_text().startswith("terrace-copy"):
                stats.append(task / "stat")
        caught = threading.Event()
        began = threading.Event()

        def kill_when_one_runs() -> None:
            began.wait()
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if any(stat.read_bytes().rpartition(b")")[2].split()[0] == b"R" for stat in stats):
                    os.kill(victim, signal.SIGKILL)
                    caught.set()
                    return

        killer = threading.Thread(target=kill_when_one_runs)
        killer.start()
        raised, number = "", 0
        try:
            while killer.is_alive():
                number += 1
                # Loads of the first rounds' prompts and stores of a new one are under way together.
                self.generate({"name": f"round {number}", "prompts": [*step["prompts"], [700 + number, 620]]})
                self.llm.reset_prefix_cache()
                if number >= 2:
                    began.set()
            self.generate({"name": "after the kill", "prompts": [[3, 300]]})
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
        say(step="kill", copying=caught.is_set(), threads=len(stats), raised=raised)

    def groups(self, step: dict[str, Any]) -> None:
        """The KV-cache groups, in process: of which kind each is, and how many tokens it sees, null for all."""
        specs = [group.kv_cache_spec for group in self._scheduler().kv_cache_config.kv_cache_groups]
        windows = [getattr(spec, "sliding_window", None) for spec in specs]
        say(step="groups", kinds=[type(spec).__name__ for spec in specs], windows=windows)

    def tracked(self, step: dict[str, Any]) -> None:
        """Of how many chunks the connector keeps what their events are to say, in process."""
        tracker = self._scheduler().connector.connector_scheduler._events_tracker
        say(step=step["name"], chunks=len(tracker._pending_event_metadata))

    def counters(self, step: dict[str, Any]) -> None:
        """Metrics by name, over all labels."""
        found = dict.fromkeys(step["names"], 0.0)
        for metric in self.llm.get_metrics():
            if metric.name in found:
                found[metric.name] += metric.value
        say(step=step["name"], counters=found)

    def count_preemptions(self, step: dict[str, Any]) -> None:
        """From here on each generate says how many there were, in process."""
        scheduler = self._scheduler()
        preempt = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> None:
            self.preempted += 1
            preempt(*args, **kwargs)

        scheduler._preempt_request = counted

    def processes(self, step: dict[str, Any]) -> None:
        say(step="processes", commands=[command_of(pid) for pid in children_of(os.getpid())])

    def raise_file(self, step: dict[str, Any]) -> None:
        Path(step["file"]).touch()

    def await_file(self, step: dict[str, Any]) -> None:
        deadline = time.monotonic() + step.get("s", 300)
        while not Path(step["file"]).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{step['file']} does not come")
            time.sleep(0.05)

    def busy_until(self, step: dict[str, Any]) -> None:
        """Prefills other long prompts until a file is there; says how long a step of the engine took."""
        seed, steps, began = step["seed"], 0, time.monotonic()
        while not Path(step["file"]).exists():
            prompts = [{"prompt_token_ids": prompt_of(seed, step["tokens"])}]
            self.llm.generate(prompts, self._sampling(step, 1), use_tqdm=False)
            seed += 1
            steps += -(-step["tokens"] // step["batched"])
        say(step="busy", step_s=(time.monotonic() - began) / max(steps, 1))

    def end(self) -> None:
        began = time.monotonic()
        core = getattr(self.llm.llm_engine, "engine_core", None)
        if core is not None:
            core.shutdown()
        say(step="end", s=time.monotonic() - began)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if plan.get("processes") else "0"
    session = Session(plan)
    for step in plan["steps"]:
        getattr(session, step["do"])(step)
    session.end()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # What vLLM leaves behind must not hang a test.
