"""Specs for the benchmarks with real vLLMs."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import reference_spec  # Of python/tests/engine, whose session.py runs these.
from terrace_kv.vllm import TerraceOffloadingSpec
from vllm.v1.kv_offload.base import LookupResult


def time_lookups(manager: Any) -> Any:
    """If TERRACE_TIME_LOOKUPS is set, prints how long each request was told to ask again before a tier knew."""
    if not os.environ.get("TERRACE_TIME_LOOKUPS"):
        return manager
    lookup = manager.lookup
    since: dict[str, float | None] = {}

    def timed(key: bytes, req_context: Any) -> Any:
        began = since.setdefault(req_context.req_id, time.perf_counter())
        answer = lookup(key, req_context)
        if answer is not LookupResult.RETRY and began is not None:
            since[req_context.req_id] = None
            waited = time.perf_counter() - began
            print("@@ " + json.dumps({"step": "lookup", "s": waited, "answer": answer.name}), flush=True)
        return answer

    manager.lookup = timed
    return manager


class TimedTerraceSpec(TerraceOffloadingSpec):
    def get_manager(self) -> Any:
        if self._manager is None:
            time_lookups(super().get_manager())
        return self._manager


class ReferenceSpec(reference_spec.ReferenceSpec):
    def get_manager(self) -> Any:
        if self._manager is None:
            time_lookups(super().get_manager())
        return self._manager
