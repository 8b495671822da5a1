"""A pytest plug-in that puts Terrace's classes in the place of vLLM's, so that vLLM's own tests test them.

    python -m pytest -p vllm_suite.plugin tests/v1/kv_offload/cpu/test_manager.py

What tests a manager: under v1/kv_offload, cpu/test_manager.py and in tiering/ test_tiering_offloading.py,
test_tier_poll_thread.py and test_backpressure.py; under v1/kv_connector/unit/offloading_connector, test_events.py and
some of test_scheduler.py (scripts/check_vllm names them; the rest have a mock for a manager, and pass). The other files
test classes of vLLM's that Terrace does not replace.

The connector's tests ask for a model by the name facebook/opt-125m and use its configuration alone: they run in a
folder that has one of a small model by that name, so that nothing is fetched.

Tests that look into private state of vLLM's classes, or state a rule that Terrace sets differently on purpose, are
listed in listed.txt, each with its reason. They run, too: their failure is expected, and that one passes is a failure.
The end of the run prints how many passed, failed and were listed.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

LISTED = pathlib.Path(__file__).with_name("listed.txt")


def read_listed() -> dict[str, str]:
    """Node ids, without the path's front and without parameters, and why each is listed."""
    listed: dict[str, str] = {}
    reason = ""
    for line in LISTED.read_text().splitlines():
        line = line.strip()
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif line:
            listed[line] = reason
    return listed


def _put_in_place() -> None:
    import vllm.v1.kv_offload.cpu.manager as cpu
    import vllm.v1.kv_offload.tiering.manager as tiering
    import vllm.v1.kv_offload.tiering.spec as tiering_spec

    from . import stand_ins

    cpu.CPUOffloadingManager = stand_ins.CPUOffloadingManager
    for module in (tiering, tiering_spec):  # The second has its own names for them.
        module.CPUPrimaryTierOffloadingManager = stand_ins.CPUPrimaryTierOffloadingManager
        module.TieringOffloadingManager = stand_ins.TieringOffloadingManager


MODEL = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "hidden_size": 128,
    "word_embed_proj_dim": 128,
    "ffn_dim": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
}


@pytest.fixture(scope="session", autouse=True)
def where_the_model_is(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.getcwd()
    there = tmp_path_factory.mktemp("models")
    model = there / "facebook" / "opt-125m"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    os.chdir(there)
    yield
    os.chdir(before)


class Counts:
    def __init__(self) -> None:
        self.passed = self.failed = self.listed = 0


_counts = Counts()


def pytest_configure(config: Any) -> None:
    _put_in_place()


def _name(nodeid: str) -> str:
    path, _, rest = nodeid.partition("::")
    return f"{'/'.join(path.split('/')[-2:])}::{rest}"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    listed = read_listed()
    for item in items:
        name = _name(item.nodeid)
        reason = listed.get(name) or listed.get(name.partition("[")[0])
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_runtest_logreport(report: Any) -> None:
    if hasattr(report, "wasxfail"):
        if report.when == "call" or (report.when == "setup" and report.skipped):
            _counts.listed += 1
        return
    if report.failed:
        _counts.failed += 1
    elif report.when == "call" and report.passed:
        _counts.passed += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    say = terminalreporter.write_line
    say(f"vLLM's own tests, on Terrace: {_counts.passed} passed, {_counts.failed} failed, {_counts.listed} listed")
