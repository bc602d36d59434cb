"""Training a map between two families: a closed form first, then the loss of what the target says behind it.

Owns the order of the two stages, when their state is kept and whose a checkpoint is, and what a map's file
says of how it came about. The stages themselves are in `closed` and `steps`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...engines.transformers.capture import Captured
from ...handoff.crossing.crossmap import CrossFacts
from ...handoff.crossing.network import CrossNetwork
from ...runs.retention_summary import Figure
from .behind import freeze
from .calibrating import CLOSED_FORM, calibrate
from .checkpoint import Checkpoint
from .pieces import Pieces
from .recipe import Recipe
from .steps import Steps

__all__ = ["Trained", "facts_of", "train"]


@dataclass(slots=True)
class Trained:
    """The network after training, the one before it, and what it took."""

    network: CrossNetwork
    started: CrossNetwork
    calibration_r2: float
    kept_share: float
    calibration_tokens: int
    tokens: int
    steps: int
    seconds: dict[str, float]
    losses: list[float]
    """Of every step."""
    finished: bool
    """False where the time ended first; the checkpoint goes on from there."""


def train(
    source: Captured,
    target: Captured,
    pieces: Pieces,
    recipe: Recipe,
    *,
    seconds: float = math.inf,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 60.0,
    say: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Train until `recipe.tokens` have passed, or `seconds` have (this call's, the closed form included).

    With a checkpoint, a training that was ended or killed goes on from its last, in its closed form as in its
    steps, and ends as one that was not; one of another recipe, text or pair is refused (FormatError).
    """
    began = time.monotonic()
    for model in (source, target):
        freeze(model)
    keep = Checkpoint(checkpoint, _settings(source, target, pieces, recipe), seconds=checkpoint_seconds)
    found = keep.read()
    if found is None or found.get("stage") == CLOSED_FORM:
        made = calibrate(source, target, pieces, recipe, kept=found, keep=keep.offer, say=say)
        steps = Steps(
            made.started.network, recipe, made.started.full_r2, made.started.kept_share, made.tokens
        )
        steps.seconds["closed form"] = made.seconds
        keep.write(steps.state())
    else:
        steps = Steps.of_state(found, recipe, target.model.device)
        say(f"going on from step {steps.step}, {steps.tokens:,} tokens")
    while steps.tokens < recipe.tokens and time.monotonic() - began < seconds:
        steps.advance(source, target, pieces)
        if steps.step % 20 == 0:
            recent = steps.losses[-20:]
            say(f"step {steps.step}: {steps.tokens:,} tokens, loss {sum(recent) / len(recent):.3f}")
        keep.offer(steps.state)
    keep.write(steps.state())
    return Trained(
        network=steps.network.requires_grad_(False),
        started=steps.started,
        calibration_r2=steps.r2,
        kept_share=steps.kept,
        calibration_tokens=steps.calibration_tokens,
        tokens=steps.tokens,
        steps=steps.step,
        seconds={name: round(value, 2) for name, value in steps.seconds.items()},
        losses=steps.losses,
        finished=steps.tokens >= recipe.tokens,
    )


def facts_of(
    trained: Trained,
    recipe: Recipe,
    *,
    device: str,
    judging_seconds: float,
    training_gain: float,
    seen_documents: Sequence[str],
    documents: int,
    nlls: Mapping[str, Sequence[float]],
    gains: Mapping[str, Figure],
    beats_controls: bool,
) -> CrossFacts:
    """What a map's file says of how it came about.

    Where training did not help, the map is the closed form, and no step of training is in it.
    """
    kept = training_gain > 0
    return CrossFacts(
        kvferry=__version__,
        trained_tokens=trained.tokens if kept else 0,
        calibration_tokens=trained.calibration_tokens,
        steps=trained.steps if kept else 0,
        positions=recipe.context_tokens,
        device=device,
        seconds={**trained.seconds, "judging": round(judging_seconds, 2)},
        settings=recipe.plain(),
        calibration_r2=trained.calibration_r2,
        training_gain=training_gain,
        held_out_texts=documents,
        nll={name: sum(values) / len(values) for name, values in nlls.items()},
        gains=dict(gains),
        beats_controls=beats_controls,
        seen_documents=tuple(sorted(set(seen_documents))),
    )


def _settings(source: Captured, target: Captured, pieces: Pieces, recipe: Recipe) -> dict[str, Any]:
    """What must be equal for a checkpoint to be gone on with."""
    found: dict[str, Any] = recipe.plain()
    found["text"] = hashlib.sha256("\n".join(pieces.digests).encode()).hexdigest()[:16]
    for side, model in (("source", source), ("target", target)):
        found[side] = f"{model.kv.name} {model.kv.weights_revision}"
        found[f"{side} tokenizer"] = model.kv.tokenizer
        found[f"{side} dtype"] = str(model.dtype).removeprefix("torch.")
    return found
