"""The KV of a span, as it would be after a journey through a codec.

Owns the way of whole blocks through the codec and back into a span that the engine goes on with. The bytes
that a codec sees are those that the arena would give it.
"""

from __future__ import annotations

import torch

from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span
from ...store.codec import Codec

__all__ = ["fork", "through"]


def through(codec: Codec, kv: torch.Tensor) -> torch.Tensor:
    """`kv` [layers, 2, KV heads, tokens, width] encoded and decoded block by block.

    Raises ValueError where the tokens are no whole blocks of the codec's layout.
    """
    size = codec.layout.block_tokens
    if kv.shape[3] % size:
        raise ValueError(f"{kv.shape[3]} tokens are no whole blocks of {size}")
    carried = torch.empty_like(kv)
    for start in range(0, kv.shape[3], size):
        block = kv[:, :, :, start : start + size].contiguous()
        view = _bytes(block)
        (slot,) = codec.slots_for([view])
        codec.encode_into(view, slot)
        codec.decode_into(slot, view)
        carried[:, :, :, start : start + size] = block
    return carried


def fork(runner: Runner, kv: torch.Tensor, capacity: int) -> Span:
    """A span of its own that begins with `kv`."""
    span = runner.new_span(capacity)
    tokens = kv.shape[3]
    span.kv[:, :, :, :tokens] = kv
    span.length = tokens
    return span


def _bytes(block: torch.Tensor) -> memoryview:
    data: memoryview = block.view(-1).view(torch.uint8).numpy().data
    return data
