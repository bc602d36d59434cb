"""The first stage of a training: the closed form, piece by piece.

Owns which pieces its sums are of and where among them it stands: between any two it can be kept, and goes on
from there to the same network. What the sums are, `handoff/crossing/initial` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...engines.transformers.capture import Captured
from ...handoff.crossing.align import align
from ...handoff.crossing.features import source_rows, spread_layers
from ...handoff.crossing.initial import Calibration, Started, target_rows, token_codes
from ...handoff.crossing.network import CrossShape
from .pieces import Pieces
from .recipe import Recipe

__all__ = ["CLOSED_FORM", "Calibrated", "calibrate"]

CLOSED_FORM = "closed form"
"""The stage of a state that is kept here."""

_LAMBDAS = (1e-2, 1e-1, 1.0)
"""Texts for the closed form are few: less than these never did best."""

_EVERY = 6
"""Each so many-th piece is of a validation document."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The closed form and what it took."""

    started: Started
    tokens: int
    """Of the target."""
    seconds: float
    """Of every call that had a part in it."""


def calibrate(
    source: Captured,
    target: Captured,
    pieces: Pieces,
    recipe: Recipe,
    *,
    kept: Mapping[str, Any] | None = None,
    keep: Callable[[Callable[[], dict[str, Any]]], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Calibrated:
    """The closed form of `recipe.calibration_tokens`.

    `keep` is offered the state behind every piece. `kept` is such a state, of the same models, pieces and
    recipe: the pieces that it has seen are not read again.
    """
    began = time.monotonic()
    shape = CrossShape(
        source=source.kv,
        target=target.kv,
        reads=spread_layers(len(source.kv.layers), recipe.source_layers),
        width=recipe.width,
        blocks=recipe.blocks,
        heads=recipe.heads,
        vocabulary=int(target.model.get_input_embeddings().weight.shape[0]),
        code_width=recipe.code_width,
    )
    device = target.model.device
    number, before = 0, 0.0
    if kept is None:
        calibration = Calibration(shape, _codes(target, shape), seed=recipe.seed)
    else:
        calibration = Calibration.of(shape, kept["sums"], device, seed=recipe.seed)
        number, before = kept["pieces"], kept["seconds"]
        say(f"going on with the closed form behind {number} pieces, {calibration.tokens:,} tokens")

    def state() -> dict[str, Any]:
        return {
            "stage": CLOSED_FORM,
            "pieces": number,
            "seconds": before + time.monotonic() - began,
            "sums": calibration.tensors(),
        }

    told = calibration.tokens
    while calibration.tokens < recipe.calibration_tokens or number < _EVERY:
        held_out = number % _EVERY == _EVERY - 1
        piece = pieces.piece(-1 - number, validation=held_out)
        ours = source.prefill(piece.context.source_ids)
        # The suffix is text as well: the target has read it, so it may teach; the source has not.
        theirs = target.prefill(piece.context.target_ids)
        calibration.add(
            source_rows(source.kv, ours, shape.reads).to(device),
            torch.tensor(piece.context.target_ids, device=device),
            align(piece.context.source_spans, piece.context.target_spans).to(device),
            target_rows(target.kv, theirs),
            held_out=held_out,
        )
        number += 1
        if calibration.tokens - told >= 5000:
            told = calibration.tokens
            say(f"closed form: {told:,} of {recipe.calibration_tokens:,} tokens")
        keep(state)
    started = calibration.solve(_LAMBDAS)
    say(
        f"closed form of {started.rows:,} tokens: explains {started.full_r2:.3f} of validation KV; "
        f"{recipe.width} latents keep {started.kept_share:.3f} of that"
    )
    return Calibrated(started, calibration.tokens, before + time.monotonic() - began)


def _codes(target: Captured, shape: CrossShape) -> torch.Tensor:
    if not shape.code_width:
        return torch.zeros(0, 0, device=target.model.device)
    return token_codes(target.model.get_input_embeddings().weight, shape.code_width)
