"""What the tests of a real engine share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .make_model import make_hybrid_model, make_model, make_recurrent_model
from .vllm_run import run

# Prompts as [seed, tokens], long enough for several blocks of 128 tokens.
LONG = [1, 1500]
OTHER = [2, 900]
SHORT = [3, 300]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out unless ./check gets --long")


def _kept_model(kind: str, make: Callable[[str], None], factory: pytest.TempPathFactory) -> str:
    kept = os.environ.get("TERRACE_TEST_MODEL")
    directory = Path(kept + kind) if kept else factory.mktemp(f"model{kind}")
    if not (directory / "config.json").exists():
        make(str(directory))
    return str(directory)


def plain_tokens(model: str, directory: Path, prompts: list[list[int]]) -> dict[str, list[int]]:
    """The tokens of each prompt from a vLLM without Terrace."""
    # Each is computed whole: a prompt's beginning is not cached.
    llm = {"enable_prefix_caching": False}
    steps = [{"do": "generate", "name": str(prompt), "prompts": [prompt]} for prompt in prompts]
    said = run({"model": model, "extra": None, "llm": llm, "steps": steps}, directory, "plain")
    return {str(prompt): said[str(prompt)]["tokens"][0] for prompt in prompts}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _kept_model("", make_model, tmp_path_factory)


@pytest.fixture(scope="session")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """By the prompt's seed."""
    prompts = [LONG, OTHER, SHORT]
    plain = plain_tokens(model, tmp_path_factory.mktemp("plain"), prompts)
    return {prompt[0]: plain[str(prompt)] for prompt in prompts}


@pytest.fixture(scope="session")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Layers in three KV-cache groups, two of which see HYBRID_WINDOW tokens."""
    return _kept_model("-hybrid", make_hybrid_model, tmp_path_factory)


@pytest.fixture(scope="session")
def recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Layers in three KV-cache groups, two of which have a recurrent state."""
    return _kept_model("-recurrent", make_recurrent_model, tmp_path_factory)


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory():
    """Terrace's memory has no name; what vLLM's own code leaves is not looked at."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = [name for name in set(os.listdir("/dev/shm")) - before if "terrace" in name or "offload" in name]
    assert left == []
