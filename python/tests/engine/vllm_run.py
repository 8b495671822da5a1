"""Runs sessions of vLLM (session.py) and reads what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Running:
    """A session under way, in a process group of its own."""

    def __init__(self, plan: dict[str, Any], directory: Path, name: str, env: dict[str, str] | None = None) -> None:
        path = directory / f"{name}.json"
        path.write_text(json.dumps(plan))
        self._log = directory / f"{name}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "session.py"), str(path)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line[3:]) for line in self.log().splitlines() if line.startswith("@@ ")]

    def stop(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def wait(self, timeout_s: float = 300) -> list[dict[str, Any]]:
        """What it said, when it has ended; its log's end if it ended badly."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"none after {timeout_s} s"
        self.stop()
        if code != 0:
            raise AssertionError(f"the session ended with {code}:\n{self.log()[-6000:]}")
        return self.said()


def run(plan: dict[str, Any], directory: Path, name: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs a session to its end; what it said, by step."""
    return by_step(Running(plan, directory, name, env).wait())


def run_pair(
    source: dict[str, Any], sink: dict[str, Any], directory: Path, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs two sessions side by side, the sink to its end before the source; what each said, by step."""
    running = Running(source, directory, "source", env)
    try:
        said = run(sink, directory, "sink", env)
        return by_step(running.wait(120)), said
    finally:
        running.stop()


def by_step(said: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["step"]: one for one in said}


def in_group(group: int) -> list[int]:
    """Processes of a group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_for_nobody(group: int, timeout_s: float) -> list[int]:
    """Who of a group is left after that time."""
    deadline = time.monotonic() + timeout_s
    while (left := in_group(group)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
