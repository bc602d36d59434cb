"""A cache of fewer tokens: those that attention has looked at, each where it stood.

Owns the score, the choice and the bookkeeping of positions. A kept key keeps the turning that it was given,
hence its distance to everything that follows; and what follows stands behind the whole text, not behind what
is left of it. A layer with a sliding window counts by places in its cache, so it cannot have gaps: such a
cache is refused unless the window holds the whole text and what follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import ModelError
from ..mapping.shapes import LayerKv, ModelKv, Prefill
from .align import Alignment

__all__ = ["Compacted", "attention_received", "carried_scores", "chosen_tokens", "compact"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What is left of a prefill, and where the text goes on."""

    prefill: Prefill
    """The kept tokens in order; `positions` are those that they always had, with gaps."""
    next_position: int
    """Of the first token behind: one more than the last of the whole text."""

    @property
    def kept(self) -> int:
        return self.prefill.tokens


def attention_received(kv: ModelKv, prefill: Prefill, *, observers: int = 32) -> torch.Tensor:
    """How much the last `observers` tokens look at each token, [tokens]: the mean over layers and heads.

    Needs a prefill with queries; each row of attention sums to one, so the scores of one observer do. Raises
    ModelError without queries.
    """
    if len(prefill.queries) != len(prefill.layers) or not prefill.layers:
        raise ModelError(f"{kv.name} shows no queries: what attention looks at is not known")
    tokens = prefill.tokens
    begin = max(0, tokens - observers)
    at = torch.arange(tokens, device=prefill.positions.device)
    total = torch.zeros(tokens, device=at.device)
    for shape, layer, query, scale in zip(
        kv.layers, prefill.layers, prefill.queries, prefill.scales, strict=True
    ):
        seen = at[None, :] <= at[begin:, None]
        if shape.window is not None:
            seen &= at[None, :] > at[begin:, None] - shape.window
        group = query.shape[0] // layer.keys.shape[0]
        keys = layer.keys.float().repeat_interleave(group, 0)
        scores = query[:, begin:].float() @ keys.transpose(1, 2) * scale
        total += scores.masked_fill(~seen, float("-inf")).softmax(-1).mean((0, 1))
    return total / len(prefill.layers)


def carried_scores(scores: torch.Tensor, alignment: Alignment) -> torch.Tensor:
    """Scores of the source's tokens as those of the target's that read them, [target tokens].

    A source token that stands for several of the target's shares its score among them; one that is read by
    none gives it to the next that is.
    """
    read = alignment.read.to(scores.device)
    sums = scores.cumsum(0)
    found = torch.zeros(read.shape[0], device=scores.device, dtype=scores.dtype)
    reached, before = -1, torch.zeros((), device=scores.device, dtype=scores.dtype)
    start = 0
    for token in range(1, read.shape[0] + 1):
        if token < read.shape[0] and read[token] == read[start]:
            continue
        last = int(read[start])
        if last > reached:
            found[start:token] = (sums[last] - before) / (token - start)
            reached, before = last, sums[last]
        start = token
    return found


def chosen_tokens(scores: torch.Tensor, keep: int, *, first: int = 1, last: int = 0) -> torch.Tensor:
    """Which tokens are kept, in order: the first and last so many, and the best scored between.

    Raises ModelError where `keep` leaves no room for them.
    """
    tokens = scores.shape[0]
    if keep >= tokens:
        return torch.arange(tokens, device=scores.device)
    if keep < max(1, first + last):
        raise ModelError(f"{keep} tokens are to be kept, the first {first} and the last {last} among them")
    ranked = scores.double().clone()
    ranked[:first] = float("inf")
    if last:
        ranked[-last:] = float("inf")
    # Of equals the later one is kept: it knows more of the text.
    order = torch.argsort(ranked.flip(0), descending=True, stable=True)[:keep]
    return (tokens - 1 - order).sort().values


def compact(kv: ModelKv, prefill: Prefill, chosen: torch.Tensor, *, following: int = 0) -> Compacted:
    """The prefill with only the chosen tokens; `following` tokens are to come behind it.

    Raises ModelError where a sliding window is shorter than the text with what follows, or tokens are not in
    order.
    """
    if chosen.numel() == 0 or bool((chosen[1:] <= chosen[:-1]).any()) or int(chosen[-1]) >= prefill.tokens:
        raise ModelError("tokens to keep must be given once each, in order, and be among the prefill's")
    next_position = int(prefill.positions[-1]) + 1
    spanned = next_position - int(prefill.positions[0]) + following
    for index, shape in enumerate(kv.layers):
        if shape.window is not None and spanned > shape.window and chosen.numel() < prefill.tokens:
            raise ModelError(
                f"{kv.name}'s layer {index} sees {shape.window} tokens of {spanned}: its cache may have no "
                "gaps; compact a model, or a text, without that"
            )
    layers = [LayerKv(layer.keys[:, chosen], layer.values[:, chosen]) for layer in prefill.layers]
    return Compacted(Prefill(layers, prefill.positions[chosen], prefill.length), next_position)
