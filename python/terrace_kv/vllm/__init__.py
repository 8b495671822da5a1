"""Terrace inside vLLM: name it in ``kv_connector_extra_config``, and keep the rest of the configuration.

    "spec_name": "TerraceOffloadingSpec", "spec_module_path": "terrace_kv.vllm"

vLLM's own OffloadingConnector then talks to Terrace's manager, host tier, tiers, control thread and worker; see
docs/vllm.md.
"""

from .version import check_version

check_version()

from .manager import TerraceOffloadingManager  # noqa: E402
from .spec import TerraceOffloadingSpec  # noqa: E402
from .worker import TerraceOffloadingWorker  # noqa: E402

__all__ = ["TerraceOffloadingManager", "TerraceOffloadingSpec", "TerraceOffloadingWorker"]
