"""Training a map between two families: a closed form first, then the loss of what the target says behind it.

Owns the two stages and their bounds. Both models are frozen; the target reads a suffix on top of mapped KV,
and gradients go through it to the map alone (a suffix loss suffices, arXiv 2601.06123). Of each context the
receiver reads the last few tokens itself (hold-back); how many is drawn anew for each step, so that the map
serves any. Step k sees the same piece and hold-back however often the training was killed before.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ... import __version__
from ...engines.transformers.capture import Captured
from ...errors import ModelError, UsageError
from ...handoff.crossing.align import align
from ...handoff.crossing.crossmap import CrossFacts, turned
from ...handoff.crossing.features import source_rows, spread_layers
from ...handoff.crossing.initial import Calibration, Started, target_rows, token_codes
from ...handoff.crossing.network import CrossNetwork, CrossShape
from ...runs.retention_summary import Figure
from .behind import first_tokens, freeze, suffix_nll
from .checkpoint import read_checkpoint, write_checkpoint
from .pieces import Piece, Pieces, check_sizes

__all__ = ["Recipe", "Trained", "calibrate", "facts_of", "train"]

_LAMBDAS = (1e-2, 1e-1, 1.0)
"""Texts for the closed form are few: less than these never did best."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, on how much, and how long at most. Everything but bounds decides the result."""

    source_layers: int = 5
    width: int = 512
    blocks: int = 2
    heads: int = 8
    code_width: int = 256
    calibration_tokens: int = 20_000
    """Target tokens for the closed form, a sixth of them of validation documents."""
    tokens: int = 100_000
    """Target tokens of the suffix loss, contexts and suffixes."""
    context_tokens: int = 160
    suffix_tokens: int = 48
    facts_share: float = 0.0
    """Share of pieces that are made-up facts; the pieces are drawn so, it decides nothing else here."""
    hold_back: tuple[int, ...] = (1, 4, 16)
    """The receiver reads one of these numbers of the context's last tokens itself."""
    pieces_a_step: int = 2
    learning_rate: float = 2e-4
    line_share: float = 0.2
    """Learning rate of the line that the closed form gave, as a share of that of the blocks."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("pieces_a_step", "calibration_tokens", "width", "source_layers", "heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        for name in ("blocks", "code_width", "tokens", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name.replace('_', '-')} must be at least 0, not {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise UsageError(
                f"width {self.width}: write a multiple of {2 * self.heads}, which {self.heads} heads share"
            )
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"learning-rate must be more than 0, not {self.learning_rate}")
        check_sizes(
            context_tokens=self.context_tokens,
            suffix_tokens=self.suffix_tokens,
            facts_share=self.facts_share,
        )
        if not self.hold_back or min(self.hold_back) < 1 or max(self.hold_back) >= self.context_tokens:
            raise UsageError("hold-back is at least 1 and less than the context")


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


def calibrate(
    source: Captured,
    target: Captured,
    pieces: Pieces,
    recipe: Recipe,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Started, int]:
    """The closed form, and the target tokens that it took."""
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
    if shape.code_width:
        codes = token_codes(target.model.get_input_embeddings().weight, shape.code_width)
    else:
        codes = torch.zeros(0, 0, device=device)
    calibration = Calibration(shape, codes, seed=recipe.seed)
    number = told = 0
    while calibration.tokens < recipe.calibration_tokens or number < 6:
        held_out = number % 6 == 5
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
    started = calibration.solve(_LAMBDAS)
    say(
        f"closed form of {started.rows:,} tokens: explains {started.full_r2:.3f} of validation KV; "
        f"{recipe.width} latents keep {started.kept_share:.3f} of that"
    )
    return started, calibration.tokens


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

    With a checkpoint, a training that was ended or killed goes on from its last; one of another recipe, text
    or pair is refused (FormatError).
    """
    began = time.monotonic()
    for model in (source, target):
        freeze(model)
    settings = _settings(source, target, pieces, recipe)
    found = None if checkpoint is None else read_checkpoint(checkpoint, settings)
    if found is None:
        started, took = calibrate(source, target, pieces, recipe, say=say)
        run = _Run(started.network, recipe, started.full_r2, started.kept_share, took)
        run.seconds["closed form"] = time.monotonic() - began
        if checkpoint is not None:
            write_checkpoint(checkpoint, settings, run.state())
    else:
        run = _Run.of_state(found, source, target, recipe)
        say(f"going on from step {run.step}, {run.tokens:,} tokens")
    saved = time.monotonic()
    while run.tokens < recipe.tokens and time.monotonic() - began < seconds:
        run.advance(source, target, pieces)
        if run.step % 20 == 0:
            recent = run.losses[-20:]
            say(f"step {run.step}: {run.tokens:,} tokens, loss {sum(recent) / len(recent):.3f}")
        if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
            write_checkpoint(checkpoint, settings, run.state())
            saved = time.monotonic()
    if checkpoint is not None:
        write_checkpoint(checkpoint, settings, run.state())
    return run.result()


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
        settings=_plain(recipe),
        calibration_r2=trained.calibration_r2,
        training_gain=training_gain,
        held_out_texts=documents,
        nll={name: sum(values) / len(values) for name, values in nlls.items()},
        gains=dict(gains),
        beats_controls=beats_controls,
        seen_documents=tuple(sorted(set(seen_documents))),
    )


class _Run:
    """The state between two steps."""

    def __init__(
        self, network: CrossNetwork, recipe: Recipe, r2: float, kept: float, calibration_tokens: int
    ) -> None:
        self.network, self.recipe = network, recipe
        self.started = copy.deepcopy(network).requires_grad_(False)
        self.r2, self.kept, self.calibration_tokens = r2, kept, calibration_tokens
        self.step = self.tokens = 0
        self.losses: list[float] = []
        self.seconds = {"closed form": 0.0, "source": 0.0, "map and target": 0.0}
        line = ("enter", "enter_bias", "leave", "leave_bias", "first")
        named = list(network.named_parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [one for name, one in named if name not in line], "share": 1.0},
                {"params": [one for name, one in named if name in line], "share": recipe.line_share},
            ],
            lr=recipe.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
        )

    def advance(self, source: Captured, target: Captured, pieces: Pieces) -> None:
        """One step."""
        self._set_rate()
        loss = 0.0
        self.optimizer.zero_grad()
        for part in range(self.recipe.pieces_a_step):
            number = self.step * self.recipe.pieces_a_step + part
            piece = pieces.piece(number)
            draw = random.Random(f"{self.recipe.seed} hold-back {number}")
            loss += self._learn(source, target, piece, draw.choice(self.recipe.hold_back))
            self.tokens += piece.tokens
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        if not math.isfinite(loss):
            raise ModelError(f"the loss is {loss} at step {self.step}: train with a smaller learning rate")
        self.losses.append(loss / self.recipe.pieces_a_step)

    def _learn(self, source: Captured, target: Captured, piece: Piece, hold_back: int) -> float:
        began = time.monotonic()
        ours = source.prefill(piece.context.source_ids)
        shape, device = self.network.shape, target.model.device
        rows = source_rows(source.kv, ours, shape.reads).to(device).clone()
        between = time.monotonic()
        self.seconds["source"] += between - began
        ids = piece.context.target_ids
        context = piece.context
        with torch.enable_grad():
            layers = self.network(
                rows,
                torch.tensor(ids, device=device),
                align(context.source_spans, context.target_spans).to(device),
            )
            kv = turned(self.network, layers, torch.arange(len(ids), device=device), target.dtype)
            kept = len(ids) - hold_back
            loss = suffix_nll(target, first_tokens(kv, kept), ids[kept:], piece.suffix, kept)
            (loss / self.recipe.pieces_a_step).backward()  # type: ignore[no-untyped-call]
        found = float(loss.detach())
        self.seconds["map and target"] += time.monotonic() - between
        return found

    def _set_rate(self) -> None:
        """A short rise, then down to a tenth by a cosine over tokens, however often it was killed."""
        done = min(1.0, self.tokens / max(1, self.recipe.tokens))
        rise = min(1.0, (self.step + 1) / 10)
        rate = self.recipe.learning_rate * rise * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "started": self.started.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shape": msgspec.json.encode(self.network.shape).decode(),
            "r2": self.r2,
            "kept": self.kept,
            "calibration_tokens": self.calibration_tokens,
            "step": self.step,
            "tokens": self.tokens,
            "losses": self.losses,
            "seconds": self.seconds,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], source: Captured, target: Captured, recipe: Recipe) -> _Run:
        shape = msgspec.json.decode(state["shape"], type=CrossShape)
        network = CrossNetwork(shape).to(target.model.device)
        network.load_state_dict(state["started"])
        run = cls(network, recipe, state["r2"], state["kept"], state["calibration_tokens"])
        run.network.load_state_dict(state["network"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step, run.tokens = state["step"], state["tokens"]
        run.losses, run.seconds = list(state["losses"]), dict(state["seconds"])
        return run

    def result(self) -> Trained:
        return Trained(
            self.network.requires_grad_(False),
            self.started,
            self.r2,
            self.kept,
            self.calibration_tokens,
            self.tokens,
            self.step,
            {name: round(value, 2) for name, value in self.seconds.items()},
            self.losses,
            self.tokens >= self.recipe.tokens,
        )


def _settings(source: Captured, target: Captured, pieces: Pieces, recipe: Recipe) -> dict[str, Any]:
    """What must be equal for a checkpoint to be gone on with."""
    found: dict[str, Any] = _plain(recipe)
    found["text"] = hashlib.sha256("\n".join(pieces.digests).encode()).hexdigest()[:16]
    for side, model in (("source", source), ("target", target)):
        found[side] = f"{model.kv.name} {model.kv.weights_revision}"
        found[f"{side} tokenizer"] = model.kv.tokenizer
        found[f"{side} dtype"] = str(model.dtype).removeprefix("torch.")
    return found


def _plain(recipe: Recipe) -> dict[str, str | int | float | list[int]]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(recipe).items()
    }
