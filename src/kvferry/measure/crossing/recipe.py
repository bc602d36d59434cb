"""What is trained, on how much: all that decides a training's result besides its text and its models.

Owns the numbers, their bounds, and their plain form, in which a map's file and a checkpoint keep them.
"""

from __future__ import annotations

import math

import msgspec

from ...errors import UsageError
from .pieces import check_sizes

__all__ = ["Recipe"]


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

    def plain(self) -> dict[str, str | int | float | list[int]]:
        """Every number by its name, as JSON has it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.structs.asdict(self).items()
        }
