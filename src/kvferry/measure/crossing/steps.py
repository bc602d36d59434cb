"""The second stage of a training: steps of the loss of what the target says behind mapped KV.

Owns the state between two steps. Both models are frozen; the target reads a suffix on top of mapped KV, and
gradients go through it to the map alone (a suffix loss suffices, arXiv 2601.06123). Of each context the
receiver reads the last few tokens itself (hold-back); how many is drawn anew for each piece, so that the map
serves any. Step k sees the same pieces and hold-back however often the training was killed before.
"""

from __future__ import annotations

import copy
import math
import random
import time
from typing import Any

import msgspec
import torch

from ...engines.transformers.capture import Captured
from ...errors import ModelError
from ...handoff.crossing.align import align
from ...handoff.crossing.crossmap import turned
from ...handoff.crossing.features import source_rows
from ...handoff.crossing.network import CrossNetwork, CrossShape
from .behind import first_tokens, suffix_nll
from .pieces import Piece, Pieces
from .recipe import Recipe

__all__ = ["Steps"]


class Steps:
    """The state between two steps. `seconds` are of the whole training, by stage."""

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
        """All of it, to be kept; `of_state` makes it again."""
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
    def of_state(cls, state: dict[str, Any], recipe: Recipe, device: torch.device) -> Steps:
        """The steps that gave this `state`."""
        shape = msgspec.json.decode(state["shape"], type=CrossShape)
        network = CrossNetwork(shape).to(device)
        network.load_state_dict(state["started"])
        run = cls(network, recipe, state["r2"], state["kept"], state["calibration_tokens"])
        run.network.load_state_dict(state["network"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step, run.tokens = state["step"], state["tokens"]
        run.losses, run.seconds = list(state["losses"]), dict(state["seconds"])
        return run
