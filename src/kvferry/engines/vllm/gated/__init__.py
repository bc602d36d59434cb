"""The gate in front of any connector that vLLM can find: `GatedX` decides for the connector `X`.

    --kv-transfer-config '{"kv_connector": "GatedLMCacheMPConnector",
      "kv_connector_module_path": "kvferry.engines.vllm.gated", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {... X's own ..., "kvferry": {"gate": {"mode": "shadow"}}}}'

vLLM asks the class for much of what it wants to know, in processes that never make an instance. So there is
one class for each inner connector, made when its name is asked for.
"""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_PREFIX = "Gated"


def __getattr__(name: str) -> Any:
    inner = name.removeprefix(_PREFIX)
    if not name.startswith(_PREFIX) or not inner:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; write Gated and a connector's name"
        )
    from .forwarding import gated_class

    return gated_class(inner)
