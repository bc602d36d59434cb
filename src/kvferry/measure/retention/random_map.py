"""A map that knows nothing but how KV is spread: the control that a real one has to beat.

For each target layer it takes the source layer at the same depth, unturned, through a matrix of seeded
Gaussian numbers. Its output is then given, channel by channel, the mean and the spread over tokens that the
real map's output has on the same context. So what is left between the two is what tokens say, not how large
their numbers are, and whatever a constant vector does for a model both have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...handoff.mapping.contract import Context
from ...handoff.mapping.rope import apply_rope, strip_rope
from ...handoff.mapping.shapes import LayerKv, ModelKv, Prefill

__all__ = ["aligned", "at_depth", "random_map"]


def random_map(
    context: Context, source: Prefill, mapped: Prefill, models: tuple[ModelKv, ModelKv], seed: int
) -> Prefill:
    """KV in the target's shapes, with the moments of `mapped` and none of its content."""
    ours, theirs = models
    takes = aligned(context)
    layers = []
    for index, (shape, real) in enumerate(zip(theirs.layers, mapped.layers, strict=True)):
        at = at_depth(index, len(theirs.layers), len(ours.layers))
        given = source.layers[at]
        keys = strip_rope(given.keys.float(), ours.layers[at].rope, source.positions, length=source.length)
        wanted = strip_rope(real.keys.float(), shape.rope, mapped.positions, length=mapped.length)
        made = _scrambled(keys[:, takes], wanted, seed, 2 * index)
        layers.append(
            LayerKv(
                apply_rope(made, shape.rope, mapped.positions, length=mapped.length).to(real.keys.dtype),
                _scrambled(given.values.float()[:, takes], real.values.float(), seed, 2 * index + 1).to(
                    real.values.dtype
                ),
            )
        )
    return Prefill(layers, mapped.positions, mapped.length)


def at_depth(index: int, of: int, among: int) -> int:
    """The layer among so many that lies at the depth of layer `index` of `of`."""
    return round(index * (among - 1) / max(1, of - 1))


def aligned(context: Context) -> Sequence[int]:
    """For each target token the last source token that ends no later; the first where none does."""
    found, at = [], 0
    reached = 0
    stops = [stop for _, stop in context.source_spans]
    for start, stop in context.target_spans:
        reached = max(reached, stop if stop > start else reached)
        while at + 1 < len(stops) and stops[at + 1] <= reached and _in_order(stops, at + 1):
            at += 1
        found.append(at)
    return found


def _in_order(stops: Sequence[int], at: int) -> bool:
    """A special behind the text (its span is empty, its stop 0) belongs to no target token."""
    return stops[at] > 0 or at == 0


def _scrambled(given: torch.Tensor, wanted: torch.Tensor, seed: int, number: int) -> torch.Tensor:
    """[heads, tokens, width] through a random matrix, with the moments over tokens of `wanted`."""
    x = given.transpose(0, 1).flatten(1)
    heads, _, width = wanted.shape
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003 + number)
    matrix = torch.randn(x.shape[1], heads * width, generator=generator).to(x.device)
    y = (x - x.mean(0)) @ matrix
    y = y.reshape(-1, heads, width).transpose(0, 1)
    spread = y.std(1, keepdim=True, unbiased=False).clamp_min(1e-12)
    return y / spread * wanted.std(1, keepdim=True, unbiased=False) + wanted.mean(1, keepdim=True)
