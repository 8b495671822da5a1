"""`vllm serve` with Terrace under HTTP load: the same answers, resets in between, and what /metrics shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from .vllm_run import wait_for_nobody

WORDS = "the cache of a model is kept in tiers and the peers of a node are served while it is busy with its own work "


class Server:
    def __init__(self, model: str, extra: dict, directory: Path) -> None:
        self.port = 12000 + os.getpid() % 8000
        self._log = directory / "serve.log"
        transfer = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "TerraceOffloadingSpec",
                "spec_module_path": "terrace_kv.vllm",
                **extra,
            },
        }
        command = [
            str(Path(sys.executable).with_name("vllm")), "serve", model, "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "4096", "--max-num-batched-tokens", "512", "--port", str(self.port), "--host", "127.0.0.1",
            "--kv-transfer-config", json.dumps(transfer),
        ]  # fmt: skip
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()[-5000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError("the server does not come up:\n" + self.log()[-5000:])

    def get(self, path: str, body: dict | None = None, method: str | None = None) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def complete(self, model: str, prompt: str, tokens: int = 8) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return json.loads(self.get("/v1/completions", body))["choices"][0]["text"]

    def reset(self, host: bool) -> None:
        self.get("/reset_prefix_cache" + ("?reset_external=true" if host else ""), method="POST")

    def metric(self, name: str, *labels: str) -> float:
        """The sum of the samples of that name that have all the labels."""
        total = 0.0
        for line in self.get("/metrics").splitlines():
            if line.startswith((name + "{", name + " ")) and all(label in line for label in labels):
                total += float(line.rpartition(" ")[2])
        return total

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def test_under_load_with_resets(model: str, tmp_path: Path) -> None:
    extra = {
        "cpu_bytes_to_use": "200MiB",
        "secondary_tiers": [{"type": "file", "root_dir": str(tmp_path / "tier")}],
    }
    server = Server(model, extra, tmp_path)
    try:
        server.wait_until_up()
        prompts = [f"{number} " + WORDS * 10 for number in range(6)]
        first = [server.complete(model, prompt) for prompt in prompts]
        server.complete(model, "a step for what was put off")
        server.reset(host=False)
        assert [server.complete(model, prompt) for prompt in prompts] == first
        server.reset(host=True)
        assert [server.complete(model, prompt) for prompt in prompts] == first
        # The prompts are there as often as they were asked, with resets of both caches in between.
        wrong: list[str] = []

        def ask(number: int) -> None:
            for turn in range(8):
                at = (number + turn) % len(prompts)
                try:
                    answer = server.complete(model, prompts[at])
                except OSError as error:
                    wrong.append(f"{number}: {error}")
                    return
                if answer != first[at]:
                    wrong.append(f"{number}: prompt {at}: {answer!r}, at first {first[at]!r}")

        askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for asker in askers:
            asker.start()
        for turn in range(6):
            time.sleep(0.4)
            server.reset(host=turn % 2 == 1)
        for asker in askers:
            asker.join(300)
        assert wrong == []
        server.complete(model, "a step for what was counted")
        assert server.metric("vllm:kv_offload_load_bytes_total") > 0
        assert server.metric("vllm:kv_offload_tiering_chunk_hits_total", 'tier="0:primary"') > 0
        assert server.metric("vllm:kv_offload_tiering_chunk_hits_total", 'tier="1:file"') > 0
        assert server.metric("vllm:kv_offload_tiering_read_bytes_total", 'tier="1:file"') > 0
        assert server.metric("terrace_host_slots") > 0
        assert server.metric("terrace_tier_up", 'tier="1:file"') == 1
        assert server.metric("terrace_host_resets_total") >= 1
    finally:
        server.stop()
    assert wait_for_nobody(server.process.pid, 30) == []
