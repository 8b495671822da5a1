"""Which versions of vLLM have the interface that this plug-in implements."""

from __future__ import annotations

SUPPORTED = ("0.33",)
"""Major and minor; the plug-in was run in 0.33.0."""


def check_version() -> None:
    """Raises ImportError, in one line, in any other vLLM."""
    try:
        from vllm import __version__ as found
    except ImportError as missing:
        raise ImportError(
            "terrace_kv.vllm is a plug-in for vLLM, which is not installed here; terrace_kv itself works without it"
        ) from missing
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        raise ImportError(
            f"terrace_kv.vllm works with vLLM {', '.join(one + '.x' for one in SUPPORTED)}; this is {found}, whose "
            "offloading interface differs: install one of those, or take the two Terrace keys out of "
            "kv_connector_extra_config to use vLLM's own offloading"
        )
