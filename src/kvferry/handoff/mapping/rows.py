"""What is fitted, and the rows that it is fitted on.

Owns the recipe of a fit, the protocol of a model that computes KV, the parts of a text, and how two prefills
of the same tokens become rows: stripped, thinned by a stride, and weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch

from ...errors import ModelError
from .checkpoint import Kept, under
from .heads import Inputs
from .layers import Side
from .mlp import MlpSettings
from .ridge import LAMBDAS
from .rope import strip_rope
from .shapes import ModelKv, Prefill
from .weights import sensitivity

__all__ = ["Prefiller", "Recipe", "Rows", "Sequences", "rows_of"]


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of map is fitted."""

    inputs: Inputs = "local"
    weighted: bool = True
    """By what attention will care about (`weights.py`)."""
    stripped: bool = True
    most_layers: int = 4
    """Source layers that a target layer may read."""
    source_layers: int | None = None
    """Exactly so many; None: as many as do best on validation documents."""
    lambdas: tuple[float, ...] = LAMBDAS
    warm_rows: int = 2048
    """Rows that source layers are chosen on."""
    stride: int = 1
    """Every so many tokens become a row."""
    mlp: MlpSettings | None = None
    mlp_rows: int = 4096
    """Rows that are held for training it."""

    def __post_init__(self) -> None:
        for name in ("most_layers", "warm_rows", "stride", "mlp_rows"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.source_layers is not None and not 1 <= self.source_layers <= self.most_layers:
            raise ModelError(f"source_layers must be 1 to {self.most_layers}, not {self.source_layers}")


@dataclass(frozen=True, slots=True)
class Rows:
    """One document as rows: both models, stripped, and what attention cares about."""

    document: str
    source: Side
    target: Side
    weights: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    """For each target layer (keys, values), each [KV heads, rows]."""

    @property
    def count(self) -> int:
        return int(self.source.keys[0].shape[1])

    def tensors(self) -> Kept:
        """All but the document's name, by name."""
        found: Kept = {}
        for side, one in (("source", self.source), ("target", self.target)):
            for kind in ("keys", "values"):
                found |= {f"{side}.{kind}.{at}": part for at, part in enumerate(getattr(one, kind))}
        for at, (keys, values) in enumerate(self.weights):
            found |= {f"weights.{at}.keys": keys, f"weights.{at}.values": values}
        return found

    @classmethod
    def of(cls, document: str, tensors: Kept) -> Rows:
        """Rows as they were when their `tensors` were taken."""

        def laid(prefix: str) -> list[torch.Tensor]:
            parts = under(prefix, tensors)
            return [parts[str(at)] for at in range(len(parts))]

        weights = under("weights", tensors)
        return cls(
            document,
            Side(laid("source.keys"), laid("source.values")),
            Side(laid("target.keys"), laid("target.values")),
            tuple((weights[f"{at}.keys"], weights[f"{at}.values"]) for at in range(len(weights) // 2)),
        )


@dataclass(frozen=True, slots=True)
class Sequences:
    """(document, token ids) of each part of the text. A document is in one part only."""

    train: Sequence[tuple[str, Sequence[int]]]
    validation: Sequence[tuple[str, Sequence[int]]]
    test: Sequence[tuple[str, Sequence[int]]]

    def __post_init__(self) -> None:
        parts = [{name for name, _ in part} for part in (self.train, self.validation, self.test)]
        if not all(parts):
            raise ModelError(
                "text for training, validation and test is needed: give at least three documents"
            )
        if parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2]:
            raise ModelError("a document is in two parts of the text: figures on it would flatter the map")


class Prefiller(Protocol):
    """A model that computes KV."""

    @property
    def kv(self) -> ModelKv:
        """What its KV looks like."""
        ...

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        """KV of every position of every layer, and the queries where asked for and known."""
        ...


def rows_of(
    document: str, source: Prefill, target: Prefill, source_kv: ModelKv, target_kv: ModelKv, recipe: Recipe
) -> Rows:
    """Rows of one document from both models' prefills of the same tokens."""
    weights = []
    if recipe.weighted:
        if not target.queries:
            raise ModelError(f"{target_kv.name} shows no queries to weigh errors by: fit unweighted")
        for shape, layer, query, scale in zip(
            target_kv.layers, target.layers, target.queries, target.scales, strict=True
        ):
            both = sensitivity(query, layer.keys, layer.values, scale=scale, window=shape.window)
            weights.append((both[0][:, :: recipe.stride], both[1][:, :: recipe.stride]))
    return Rows(document, _side(source, source_kv, recipe), _side(target, target_kv, recipe), tuple(weights))


def _side(prefill: Prefill, kv: ModelKv, recipe: Recipe) -> Side:
    keys = []
    for shape, layer in zip(kv.layers, prefill.layers, strict=True):
        part = layer.keys[:, :: recipe.stride]
        if recipe.stripped:
            short = part.dtype in (torch.float16, torch.bfloat16)
            length = prefill.length
            if length is None and shape.rope.varies:
                length = int(prefill.positions.max()) + 1
            part = strip_rope(
                part,
                shape.rope,
                prefill.positions[:: recipe.stride],
                length=length,
                rounded_to=part.dtype if short else None,
            )
        keys.append(part.float())
    values = [layer.values[:, :: recipe.stride].float() for layer in prefill.layers]
    return Side(keys, values)
