"""A conversation that changes hands: source, target, source, target, and what adds up.

The source says a turn, and the target gets its KV through the map; the target says the next turn on top of
that, in its own KV, and the source reads what was said; and so on. So at the target's turn number n its
context was handed over n times, in pieces, and its own earlier turns were computed behind mapped KV. Each of
its turns is compared with what it would say had it read everything itself. Turns are pieces of one text, and
every reader is given the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from ...handoff.mapping.contract import KvMap
from ...handoff.mapping.shapes import LayerKv
from .reader import Reader, read_context

__all__ = ["HandedOn", "hand_on", "slope"]


@dataclass(frozen=True, slots=True)
class HandedOn:
    """One conversation: a figure for each of the target's turns."""

    document: str
    nll_difference: tuple[float, ...]
    """Nats a token more than the target's own."""
    kl: tuple[float, ...]
    top1: tuple[float, ...]


def hand_on(
    document: str, text: str, source: Reader, target: Reader, map_: KvMap, *, handoffs: int, turn_tokens: int
) -> HandedOn | None:
    """A text in turns of about `turn_tokens` of the target's; None where it is too short for all of them."""
    pieces, rest = [], text
    for _ in range(2 * handoffs):
        stop = target.cut(rest, turn_tokens)
        if stop == len(rest) or not rest[:stop].strip():
            return None
        pieces.append(rest[:stop])
        rest = rest[stop:]
    context = read_context("".join(pieces), source, target)
    ids = context.target_ids
    # A turn's tokens are those that end within it.
    stops = [_tokens_until(context.target_spans, end) for end in accumulate(map(len, pieces))]
    (native,) = target.behind(None, 0, ids[:1], [ids[1:]])
    places = torch.arange(len(ids), device=target.model.model.device)
    carried = map_.carry(context, source.prefill(context.source_ids), places).layers
    layers = [LayerKv(layer.keys[:, :0], layer.values[:, :0]) for layer in carried]
    found: list[tuple[float, float, float]] = []
    begin = 0
    for handed, said in zip(stops[::2], stops[1::2], strict=True):
        # The last token of what was handed over is read by the receiver: it has to begin with something.
        layers = _joined(layers, carried, begin, handed - 1)
        logp, own = target.read_on(layers, ids[handed - 1 : said])
        layers = [_after(a, b) for a, b in zip(layers, own, strict=True)]
        # `native` has no row for the text's first token.
        found.append(_compared(logp[:-1], native[handed - 1 : said - 1], ids[handed:said]))
        begin = said
    nll, kl, top1 = zip(*found, strict=True)
    return HandedOn(document, nll, kl, top1)


def slope(values: Sequence[float]) -> float:
    """What one more hand-off adds: the least-squares line through the turns' figures."""
    x = np.arange(len(values), dtype=np.float64)
    x -= x.mean()
    return float(x @ np.asarray(values) / (x @ x))


def _tokens_until(spans: Sequence[tuple[int, int]], end: int) -> int:
    """How many tokens there are up to the last that ends at or before character `end`."""
    return max(at + 1 for at, (_, stop) in enumerate(spans) if stop <= end)


def _joined(held: Sequence[LayerKv], carried: Sequence[LayerKv], start: int, stop: int) -> list[LayerKv]:
    return [
        _after(a, LayerKv(b.keys[:, start:stop], b.values[:, start:stop]))
        for a, b in zip(held, carried, strict=True)
    ]


def _after(first: LayerKv, then: LayerKv) -> LayerKv:
    return LayerKv(torch.cat([first.keys, then.keys], 1), torch.cat([first.values, then.values], 1))


def _compared(said: torch.Tensor, native: torch.Tensor, ids: Sequence[int]) -> tuple[float, float, float]:
    wanted = torch.tensor(list(ids), device=said.device)[:, None]
    nll = (native.gather(1, wanted) - said.gather(1, wanted)).mean()
    kl = (native.exp() * (native - said)).sum(-1).clamp_min(0).mean()
    return float(nll), float(kl), float((native.argmax(-1) == said.argmax(-1)).float().mean())
