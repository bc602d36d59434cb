"""The namespace that both roles of a hand-off speak of.

Owns one thing: that it is of the KV as the runner computes it. What a codec of the wire does to that is the
manifest's to add; what codec the tiers have is no business of a hand-off.
"""

from __future__ import annotations

import msgspec

from ...config import Config
from ...engines.transformers.build import namespaces_of
from ...engines.transformers.runner import Runner
from ...keys.namespace import Namespace

__all__ = ["handoff_namespace"]


def handoff_namespace(config: Config, runner: Runner) -> Namespace:
    """The namespace of a runner's KV as it is computed, whatever codec its tiers have."""
    space = namespaces_of(config, runner)[config.data_class]
    return msgspec.structs.replace(space, kv_dtype=runner.layout.dtype_name)
