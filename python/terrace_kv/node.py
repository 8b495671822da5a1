"""A running node: host memory, manager and tiers, made from one configuration."""

from __future__ import annotations

import atexit
import enum
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _core
from .tiers import Tier


class LookupResult(enum.Enum):
    """What a look-up in the manager found. Only HIT permits prepare_load()."""

    MISS = 0
    HIT = 1
    HIT_PENDING = 2
    RETRY = 3


_running: weakref.WeakSet[Node] = weakref.WeakSet()
os.register_at_fork(after_in_child=_running.clear)  # A node's threads stay with its process.


@atexit.register
def _shut_down_all() -> None:
    """While tiers in Python can still be called: a native thread that waits for an interpreter that ends aborts."""
    for node in list(_running):
        node.shutdown()


def _json(config: Mapping[str, Any] | str) -> str:
    return config if isinstance(config, str) else json.dumps(dict(config))


def check_config(config: Mapping[str, Any] | str) -> None:
    """Raises ConfigError with every fault of a configuration, a line each; see docs/configuration.md."""
    _core.check_config(_json(config))


class Node:
    """What an engine has one of for each model that it serves.

    Threads: the manager may be used from any thread under its own lock; all else belongs to one thread.

    Args:
        config: the configuration, as a mapping or as JSON text (docs/configuration.md).
        identity: what must be equal for one process to use the chunks of another.
        memory: host memory that others use too; None: its own.
        tiers: tiers in Python, each with its place among all secondary tiers, in order of place.
        answers: what ``manager.lookup()`` returns for miss, hit, pending and retry.
        make_context: makes the object that stands for a peer's request before tiers in Python, of its number.

    Raises:
        ConfigError: the configuration is wrong.
        TerraceError: memory, a directory or a port cannot be had.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        identity: _core.CacheIdentity,
        *,
        memory: _core.HostMemory | None = None,
        tiers: Sequence[tuple[int, Tier]] = (),
        answers: Sequence[Any] = tuple(LookupResult),
        make_context: Callable[[int], Any] | None = None,
    ) -> None:
        text = _json(config)
        self.memory = memory if memory is not None else _core.HostMemory.create(text, identity)
        """The slots; ``memoryview(node.memory)`` has a row of ``stride_bytes`` for each."""
        self._core = _core.Node(text, identity, self.memory, list(tiers), tuple(answers), make_context)
        self.manager: _core.Manager = self._core.manager
        if tiers:
            _running.add(self)

    @property
    def metrics_address(self) -> str:
        """host:port of /metrics; empty if ``metrics_listen`` is."""
        return self._core.metrics_address

    def wait_for_progress(self, timeout_s: float) -> bool:
        """Blocks until a tier finished something, or the time passed. True if not the latter."""
        return self._core.wait_for_progress(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Blocks until everything stored has reached the secondary tiers, or the time passed: False."""
        return self.manager.drain(timeout_s)

    def shutdown(self) -> None:
        """Stops the tiers, at most after the I/O that is running: drain() first to keep all. Idempotent."""
        self.manager.shutdown()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()
