"""Which inputs a target head is computed from: all heads of the chosen layers, or its matched ones.

Owns the wiring between the layers of two models and the gathering of rows along it. Heads are matched by
what they explain of each other, never by number, since nothing orders the heads of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import torch

from ...errors import ModelError

__all__ = ["Inputs", "Wiring"]

Inputs = Literal["full", "local"]
"""full: every head of each chosen layer (2608.03893). local: one matched head of each (2609.00891)."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one target layer."""

    sources: tuple[int, ...]
    """Source layers, the best first."""
    matched: tuple[tuple[int, ...], ...] = ()
    """local: for each source layer, the head that each target head reads. Empty: every head reads all."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ModelError("a target layer without a source layer cannot be mapped")
        if self.matched and len(self.matched) != len(self.sources):
            raise ModelError(
                f"{len(self.sources)} source layers, but heads of {len(self.matched)} are matched"
            )

    @property
    def inputs(self) -> Inputs:
        return "local" if self.matched else "full"

    def first(self, layers: int) -> Wiring:
        """The same with the best `layers` source layers only."""
        return Wiring(sources=self.sources[:layers], matched=self.matched[:layers])

    def panels(self, target_heads: int) -> int:
        """Sets of inputs: one for all heads, or one for each."""
        return target_heads if self.matched else 1

    def width(self, heads: Sequence[int], widths: Sequence[int]) -> int:
        """Inputs of one head, where layer i of the source has heads[i] heads of widths[i] numbers."""
        return sum(widths[at] * (1 if self.matched else heads[at]) for at in self.sources)

    def gather(self, layers: Sequence[torch.Tensor], rows: slice = slice(None)) -> torch.Tensor:
        """Inputs [panels, rows, p] from every source layer's [heads, tokens, width]."""
        parts = []
        for rank, source in enumerate(self.sources):
            part = layers[source][:, rows]
            if self.matched:
                parts.append(part[list(self.matched[rank])])
            else:
                parts.append(part.transpose(0, 1).flatten(1).unsqueeze(0))
        return torch.cat(parts, dim=2)

    def shape_outputs(self, layer: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        """Outputs [panels, rows, q] from the target layer's [heads, tokens, width]."""
        part = layer[:, rows]
        return part if self.matched else part.transpose(0, 1).flatten(1).unsqueeze(0)
