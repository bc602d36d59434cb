"""What is mapped: the shape of a model's KV, and the KV of one prefill.

Owns the two descriptions and nothing else. Keys are always as a cache holds them, that is turned to their
positions, unless a name says `stripped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from .rope import Rope

__all__ = ["LayerKv", "LayerShape", "ModelKv", "Prefill"]


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of one layer."""

    kv_heads: int
    query_heads: int
    key_width: int
    value_width: int
    rope: Rope
    window: int | None = None
    """Tokens that a query sees, itself included; None: all before it."""

    @property
    def numbers_per_token(self) -> int:
        return self.kv_heads * (self.key_width + self.value_width)


class ModelKv(msgspec.Struct, frozen=True, kw_only=True):
    """A model as far as its KV goes, and which model it is."""

    name: str
    weights_revision: str
    """Revision, or digest of the weights."""
    tokenizer: str
    """Digest of the tokenizer."""
    position: str
    """Canonical text of the position parameters, as in the model's namespace."""
    layers: tuple[LayerShape, ...]

    @property
    def numbers_per_token(self) -> int:
        return sum(layer.numbers_per_token for layer in self.layers)


@dataclass(frozen=True, slots=True)
class LayerKv:
    """KV of one layer: keys and values, each [KV heads, tokens, width]."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prefill:
    """The KV of one prefill: every position of every layer, whatever windows the model has."""

    layers: Sequence[LayerKv]
    positions: torch.Tensor
    """Position of each token, [tokens]."""
    length: int | None = None
    """The sequence length by which a scaling of RoPE that varies was chosen; None: last position + 1."""
    queries: Sequence[torch.Tensor] = field(default=())
    """Queries of each layer [query heads, tokens, width], turned, where they were asked for."""
    scales: Sequence[float] = field(default=())
    """The factor on each layer's scores."""

    @property
    def tokens(self) -> int:
        return int(self.positions.shape[0])
