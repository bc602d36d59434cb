"""The two roles over one model each, as others import them, and the namespace that they speak of."""

from __future__ import annotations

import msgspec

from ...config import Config
from ...engines.transformers.build import namespaces_of
from ...engines.transformers.runner import Runner
from ...keys.namespace import Namespace
from .chunks import prefill_in_chunks
from .decoding import Answered, DecodeNode
from .prefilling import HandedOver, PrefillNode

__all__ = [
    "Answered",
    "DecodeNode",
    "HandedOver",
    "PrefillNode",
    "handoff_namespace",
    "prefill_in_chunks",
]


def handoff_namespace(config: Config, runner: Runner) -> Namespace:
    """The namespace of a runner's KV as it is computed, whatever codec its tiers have."""
    space = namespaces_of(config, runner)[config.data_class]
    return msgspec.structs.replace(space, kv_dtype=runner.layout.dtype_name)
