"""Terrace for Python: keeps the KV-cache of LLM inference in tiers.

    import terrace_kv

    identity = terrace_kv.CacheIdentity(model="llama", revision="1", dtype="f16", layout="pages", layout_version=1,
                                        tokens_per_chunk=16, chunk_bytes=1 << 20, shard_index=0, shard_count=1,
                                        engine="mine 1.0")
    with terrace_kv.Node({"cpu_bytes_to_use": "1GiB"}, identity) as node:
        with node.manager.lock:
            ...

The plug-in for vLLM is ``terrace_kv.vllm``; importing this package needs neither vLLM nor torch.
"""

from ._core import BlockCopier, CacheIdentity, HostMemory, Manager, TierServer
from ._core import config_schema as config_schema
from ._core import version as __version__
from .errors import ChunkGone, ConfigError, TerraceError
from .node import LookupResult, Node, check_config
from .tiers import JobResult, Tier, key_of, keys_of

__all__ = [
    "BlockCopier",
    "CacheIdentity",
    "ChunkGone",
    "ConfigError",
    "HostMemory",
    "JobResult",
    "LookupResult",
    "Manager",
    "Node",
    "TerraceError",
    "Tier",
    "TierServer",
    "__version__",
    "check_config",
    "config_schema",
    "key_of",
    "keys_of",
]
