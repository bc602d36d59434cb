"""What the map reads of the source: KV of a few layers, keys unturned, a row for each token.

Owns which layers are read where a user names none, and the order of numbers in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import ModelError
from ..mapping.rope import strip_rope
from ..mapping.shapes import ModelKv, Prefill

__all__ = ["feature_width", "source_rows", "spread_layers"]


def spread_layers(layers: int, count: int) -> tuple[int, ...]:
    """`count` layers spread evenly from the first to the last, fewer where there are not so many."""
    if count < 1:
        raise ModelError(f"{count} source layers: the map must read at least one")
    count = min(count, layers)
    if count == 1:
        return (layers // 2,)
    return tuple(sorted({round(index * (layers - 1) / (count - 1)) for index in range(count)}))


def feature_width(kv: ModelKv, reads: Sequence[int]) -> int:
    """Numbers of a row."""
    return sum(kv.layers[index].numbers_per_token for index in reads)


def source_rows(kv: ModelKv, prefill: Prefill, reads: Sequence[int]) -> torch.Tensor:
    """Rows [tokens, numbers], float32: for each layer read, its keys of all heads, then its values.

    Raises ModelError where the prefill is not the model's.
    """
    if len(prefill.layers) != len(kv.layers):
        raise ModelError(f"KV of {len(prefill.layers)} layers came, {kv.name} has {len(kv.layers)}")
    length = prefill.length
    parts = []
    for index in reads:
        shape, layer = kv.layers[index], prefill.layers[index]
        wanted = (shape.kv_heads, prefill.tokens, shape.key_width)
        if tuple(layer.keys.shape) != wanted:
            raise ModelError(f"layer {index}: keys {tuple(layer.keys.shape)} came, {wanted} is {kv.name}'s")
        short = layer.keys.dtype in (torch.float16, torch.bfloat16)
        keys = strip_rope(
            layer.keys,
            shape.rope,
            prefill.positions,
            length=length,
            rounded_to=layer.keys.dtype if short else None,
        )
        parts += [part.float().transpose(0, 1).flatten(1) for part in (keys, layer.values)]
    return torch.cat(parts, dim=1)
