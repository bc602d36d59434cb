"""Which source layers a target layer is mapped from, and which of their heads match.

A layer's score is the held-out R2 of a ridge from one source head to one target head, over stripped keys and
values, each target head with the source head that explains it best (arXiv 2608.03893 takes the head of the
same number; where a family permutes its heads that head explains nothing). Rows to fit and rows to judge
come from different documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import ModelError
from .heads import Inputs, Wiring

__all__ = ["Scores", "Side", "score_layers", "wire"]

_LAMBDA = 1e-3
"""Relative lambda of the single-head ridges: they rank, they do not map."""


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of one model: for each layer [heads, rows, width], stripped keys and values."""

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Scores:
    """Held-out R2 of every source head for every target head, mean over keys and values.

    `by_head[source layer][target layer]` is [source heads, target heads].
    """

    by_head: Sequence[Sequence[torch.Tensor]]

    def layer(self, source: int, target: int) -> float:
        """Head-matched R2 of one source layer for one target layer."""
        return float(self.by_head[source][target].amax(0).mean())

    def matched(self, source: int, target: int) -> tuple[int, ...]:
        """For each target head the source head that explains it best."""
        return tuple(int(head) for head in self.by_head[source][target].argmax(0))

    def ranked(self, target: int) -> list[int]:
        """Source layers, the best first; of equals the nearest in depth."""
        sources, targets = len(self.by_head), len(self.by_head[0])

        def order(source: int) -> tuple[float, float]:
            apart = abs((source + 0.5) / sources - (target + 0.5) / targets)
            return -self.layer(source, target), apart

        return sorted(range(sources), key=order)


def score_layers(source: Side, target: Side, fitted: torch.Tensor, judged: torch.Tensor) -> Scores:
    """Score every pair of heads. `fitted` and `judged` are indices of rows, of different documents.

    Raises `ModelError` where either has too few rows to say anything.
    """
    least = 2 + max(part.shape[2] for part in (*source.keys, *source.values))
    if len(fitted) < least or len(judged) < 2:
        raise ModelError(
            f"{len(fitted)} rows to fit and {len(judged)} to judge do not rank layers; "
            f"at least {least} and 2 are needed: give more text"
        )
    keys = _score(source.keys, target.keys, fitted, judged)
    values = _score(source.values, target.values, fitted, judged)
    return Scores(
        [
            [(key + value) / 2 for key, value in zip(*pair, strict=True)]
            for pair in zip(keys, values, strict=True)
        ]
    )


def wire(scores: Scores, most: int, inputs: Inputs) -> list[Wiring]:
    """The best `most` source layers of each target layer, heads matched where inputs are local."""
    found = []
    for target in range(len(scores.by_head[0])):
        sources = tuple(scores.ranked(target)[:most])
        matched = tuple(scores.matched(source, target) for source in sources) if inputs == "local" else ()
        found.append(Wiring(sources=sources, matched=matched))
    return found


def _score(
    source: Sequence[torch.Tensor],
    target: Sequence[torch.Tensor],
    fitted: torch.Tensor,
    judged: torch.Tensor,
) -> list[list[torch.Tensor]]:
    shapes = [(layer.shape[0], layer.shape[2]) for layer in target]
    outputs = torch.cat([layer.transpose(0, 1).flatten(1) for layer in target], dim=1).float()
    fit_y, judge_y = outputs[fitted], outputs[judged]
    mean_y = fit_y.mean(0)
    fit_y, judge_y = fit_y - mean_y, judge_y - mean_y
    variance = (judge_y - judge_y.mean(0)).square().sum(0)
    squares = judge_y.square().sum(0)
    return [
        _score_layer(layer, fitted, judged, fit_y, judge_y, squares, variance, shapes) for layer in source
    ]


def _score_layer(
    layer: torch.Tensor,
    fitted: torch.Tensor,
    judged: torch.Tensor,
    fit_y: torch.Tensor,
    judge_y: torch.Tensor,
    squares: torch.Tensor,
    variance: torch.Tensor,
    shapes: Sequence[tuple[int, int]],
) -> list[torch.Tensor]:
    x = layer.float()
    fit_x, judge_x = x[:, fitted], x[:, judged]
    mean_x = fit_x.mean(1, keepdim=True)
    fit_x, judge_x = fit_x - mean_x, judge_x - mean_x
    gram = (fit_x.transpose(1, 2) @ fit_x).double()
    trace = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-30)
    gram = gram + torch.diag_embed((_LAMBDA * trace)[:, None].expand(-1, gram.shape[1]))
    weight = torch.linalg.solve(gram, (fit_x.transpose(1, 2) @ fit_y).double()).float()
    # Squares of the rest from moments: less work than predicting every row.
    cross = judge_x.transpose(1, 2) @ judge_y
    seen = judge_x.transpose(1, 2) @ judge_x
    left = squares - 2 * (weight * cross).sum(1) + (weight * (seen @ weight)).sum(1)
    scores, start = [], 0
    for heads, width in shapes:
        part = slice(start, start + heads * width)
        lost = left[:, part].reshape(-1, heads, width).sum(2)
        total = variance[part].reshape(heads, width).sum(1)
        known = total > 0
        scores.append(torch.where(known, 1 - lost / torch.where(known, total, 1.0), torch.zeros_like(lost)))
        start += heads * width
    return scores
