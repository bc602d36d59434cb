"""What a trained map is worth on documents that nothing was trained on, against its controls.

Owns the arms, each with the same suffix behind the same hold-back, and the rule that makes a map a failed
one: it must beat the random mapper and no context, with intervals that exclude zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...engines.transformers.capture import Captured
from ...errors import UsageError
from ...handoff.crossing.crossmap import CrossMap, random_map
from ...handoff.mapping.shapes import Prefill
from ...runs.retention_summary import Figure, Interval
from ..retention.intervals import PairedBootstrap
from ..retention.reader import leading_marks
from .behind import first_tokens, suffix_nll
from .pieces import Piece

__all__ = ["CONTROLS", "beats_controls", "gains_of", "suffix_nlls", "training_gain"]

CONTROLS = ("none", "random")


@torch.no_grad()
def suffix_nlls(
    source: Captured,
    target: Captured,
    made: CrossMap,
    pieces: Sequence[Piece],
    *,
    others: Mapping[str, CrossMap] | None = None,
    hold_back: int = 1,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Nats a suffix token of every piece, by arm: target, mapped, random, those of `others`, none."""
    if not pieces:
        raise UsageError("no document is left to judge on: give more text")
    maps = {"mapped": made, "random": random_map(made, seed=seed)}
    maps.update(others or {})
    found: dict[str, list[float]] = {name: [] for name in ("target", *maps, "none")}
    for number, piece in enumerate(pieces, 1):
        context = piece.context
        tokens = len(context.target_ids)
        ours = source.prefill(context.source_ids)
        kvs: dict[str, Prefill] = {
            name: one.carry(context, ours, torch.arange(tokens)) for name, one in maps.items()
        }
        kvs["target"] = target.prefill(context.target_ids)
        kept = tokens - hold_back
        for name, kv in kvs.items():
            nll = suffix_nll(target, first_tokens(kv, kept), context.target_ids[kept:], piece.suffix, kept)
            found[name].append(float(nll))
        marks = context.target_ids[: leading_marks(context.target_spans)]
        reread = [*marks, *context.target_ids[max(kept, len(marks)) :]]
        if number % 10 == 0:
            say(f"{number} of {len(pieces)} documents")
        found["none"].append(float(suffix_nll(target, None, reread, piece.suffix, 0)))
    return found


@torch.no_grad()
def training_gain(
    source: Captured,
    target: Captured,
    started: CrossMap,
    trained: CrossMap,
    pieces: Sequence[Piece],
    *,
    hold_back: int = 1,
) -> float:
    """Nats a suffix token by which training has helped, over these pieces; less than 0: it has harmed.

    Asked on validation documents, which choose and are of no figure.
    """
    total = 0.0
    for piece in pieces:
        context = piece.context
        ours = source.prefill(context.source_ids)
        tokens = len(context.target_ids)
        for one, sign in ((started, 1.0), (trained, -1.0)):
            kv = first_tokens(one.carry(context, ours, torch.arange(tokens)), tokens - hold_back)
            reread = context.target_ids[tokens - hold_back :]
            total += sign * float(suffix_nll(target, kv, reread, piece.suffix, tokens - hold_back))
    return total / max(1, len(pieces))


def gains_of(nlls: dict[str, list[float]], pieces: Sequence[Piece], *, seed: int = 0) -> dict[str, Figure]:
    """Nats a token by which the map is better than each other arm: more than 0 is better."""
    bootstrap = PairedBootstrap([piece.document for piece in pieces], seed=seed)
    return {
        name: bootstrap.difference(values, nlls["mapped"])
        for name, values in nlls.items()
        if name != "mapped"
    }


def beats_controls(gains: dict[str, Figure]) -> bool:
    """Whether the map is better than every control, zero being outside each interval."""
    return all(isinstance(figure := gains.get(name), Interval) and figure.low > 0 for name in CONTROLS)
