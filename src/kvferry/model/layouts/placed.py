"""The layers of a deployment on their ranks: those of the model and of a draft head, by pipeline stage.

Owns where draft layers run (behind the last stage) and what the fullest rank is. Layouts that sum over layers
start from it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UsageError
from ..layers import Latent, Layer, Model
from .kept import Keeper, Kept, Rules
from .setup import Setup
from .stages import stage_ranges

__all__ = ["Placed", "draft_layers"]


class Placed:
    """What every layer keeps, and which stage holds it."""

    def __init__(self, model: Model, setup: Setup, rules: Rules) -> None:
        layers = [*model.layers, *draft_layers(model, setup)]
        self.keeper = Keeper(model, setup, rules)
        self.kept: list[Kept] = self.keeper.all(layers)
        self.stages = stage_ranges(len(model.layers), setup.pp)
        self.stages[-1] = range(self.stages[-1].start, len(layers))

    def fullest(self, size: Callable[[Kept], int]) -> int:
        """The sum over the layers of the stage where it is largest."""
        sizes = [size(one) for one in self.kept]
        return max(sum(sizes[index] for index in stage) for stage in self.stages)


def draft_layers(model: Model, setup: Setup) -> list[Layer]:
    """Draft layers keep what the model's last layer of full attention keeps."""
    if not setup.draft_layers:
        return []
    for layer in reversed(model.layers):
        attention = layer.attention
        if layer.shares is not None or attention is None:
            continue
        if isinstance(attention, Latent) or attention.window is None:
            return [Layer(attention)] * setup.draft_layers
    raise UsageError(
        "--draft-layers: the model has no layer of full attention that a draft layer could be like"
    )
