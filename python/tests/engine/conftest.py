"""What the tests of a real engine share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .make_model import make_model
from .vllm_run import run

# Prompts as [seed, tokens], long enough for several blocks of 128 tokens.
LONG = [1, 1500]
OTHER = [2, 900]
SHORT = [3, 300]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    kept = os.environ.get("TERRACE_TEST_MODEL")
    directory = Path(kept) if kept else tmp_path_factory.mktemp("model")
    if not (directory / "config.json").exists():
        make_model(str(directory))
    return str(directory)


@pytest.fixture(scope="session")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """The tokens of each prompt, by its seed, from a vLLM without Terrace."""
    prompts = [LONG, OTHER, SHORT]
    plan = {
        "model": model,
        "extra": None,
        "steps": [{"do": "generate", "name": "plain", "prompts": [prompt]} | {"name": f"plain {prompt[0]}"} for prompt in prompts],
    }
    said = run(plan, tmp_path_factory.mktemp("plain"), "plain")
    return {prompt[0]: said[f"plain {prompt[0]}"]["tokens"][0] for prompt in prompts}


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory():
    """Terrace's memory has no name; what vLLM's own code leaves is not looked at."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = [name for name in set(os.listdir("/dev/shm")) - before if "terrace" in name or "offload" in name]
    assert left == []
