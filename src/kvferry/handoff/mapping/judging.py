"""How near mapped KV comes to the native one on documents that nothing was fitted on.

Owns two figures: R2 of stripped keys and values by head, summed over documents without keeping them; and the
cosine of attention's output, which foretells what is left of a model's quality better than R2 does
(r = 0.57 against -0.20 in arXiv 2608.03893).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from .checkpoint import Kept, named, under
from .mapper import Mapper
from .rows import Rows
from .shapes import LayerKv, LayerShape

__all__ = ["Tallies", "Tally", "attention_cosine"]


class Tally:
    """Squares left and squares there, of every head of one layer, over any number of rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._origin = self._sums = self._squares = self._left = torch.zeros(0, dtype=torch.float64)

    def add(self, native: torch.Tensor, mapped: torch.Tensor) -> None:
        """Both [heads, rows, width]."""
        native, mapped = native.double(), mapped.double()
        if not self.rows:
            self._origin = native.mean(1, keepdim=True)
            self._left = torch.zeros(native.shape[0], dtype=torch.float64, device=native.device)
            self._sums, self._squares = torch.zeros_like(self._origin), torch.zeros_like(self._origin)
        self._left += (native - mapped).square().sum((1, 2))
        about = native - self._origin
        self._sums += about.sum(1, keepdim=True)
        self._squares += about.square().sum(1, keepdim=True)
        self.rows += native.shape[1]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that was counted, by name."""
        return {
            "rows": torch.tensor(self.rows),
            "origin": self._origin,
            "sums": self._sums,
            "squares": self._squares,
            "left": self._left,
        }

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Be what the `tensors` were taken of."""
        self.rows = int(tensors["rows"])
        self._origin, self._sums = tensors["origin"], tensors["sums"]
        self._squares, self._left = tensors["squares"], tensors["left"]

    def by_head(self) -> list[float]:
        """R2 of each head, the numbers of a head pooled; 0 where a head never varies. Empty without rows."""
        if not self.rows:
            return []
        total = (self._squares - self._sums.square() / self.rows).sum((1, 2))
        known = total > 0
        return [
            float(one) for one in torch.where(known, 1 - self._left / torch.where(known, total, 1.0), 0.0)
        ]

    def mean(self) -> float:
        """Mean R2 over heads."""
        heads = self.by_head()
        return sum(heads) / len(heads) if heads else 0.0


@dataclass
class Tallies:
    """R2 of every layer of a map, keys and values."""

    layers: int
    keys: list[Tally] = field(init=False)
    values: list[Tally] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [Tally() for _ in range(self.layers)]
        self.values = [Tally() for _ in range(self.layers)]

    def add(self, mapper: Mapper, rows: Rows) -> None:
        """Count what the map makes of these rows; always the same map."""
        for index, (layer, wiring) in enumerate(zip(mapper.layers, mapper.outline.wiring, strict=True)):
            for kind, line, mlp, tally in (
                ("keys", layer.keys, layer.keys_mlp, self.keys[index]),
                ("values", layer.values, layer.values_mlp, self.values[index]),
            ):
                x = wiring.gather(getattr(rows.source, kind)).float()
                native = getattr(rows.target, kind)[index]
                mapped = line(x) if mlp is None else line(x) + mlp(x)
                if not wiring.matched:
                    mapped = mapped[0].reshape(native.shape[1], native.shape[0], -1).transpose(0, 1)
                tally.add(native, mapped)

    def tensors(self) -> Kept:
        """All that was counted, by name."""
        found: Kept = {}
        for name, tally in self._by_name():
            found |= named(name, tally.tensors())
        return found

    def take(self, tensors: Kept) -> None:
        """Be what the `tensors` were taken of."""
        for name, tally in self._by_name():
            tally.take(under(name, tensors))

    def _by_name(self) -> Iterator[tuple[str, Tally]]:
        for kind in ("keys", "values"):
            for index, tally in enumerate(getattr(self, kind)):
                yield f"{kind}.{index}", tally


def attention_cosine(
    queries: torch.Tensor, shape: LayerShape, scale: float, native: LayerKv, mapped: LayerKv
) -> float:
    """Mean cosine over query heads and tokens of a layer's attention output, native against mapped KV.

    queries [query heads, tokens, width], turned, as are both layers' keys; causal, within the layer's window.
    """
    outputs = [_attend(queries, shape, scale, one) for one in (native, mapped)]
    return float(torch.nn.functional.cosine_similarity(outputs[0], outputs[1], dim=-1).mean())


def _attend(queries: torch.Tensor, shape: LayerShape, scale: float, layer: LayerKv) -> torch.Tensor:
    tokens = queries.shape[1]
    at = torch.arange(tokens, device=queries.device)
    seen = at[None, :] <= at[:, None]
    if shape.window is not None:
        seen &= at[None, :] > at[:, None] - shape.window
    group = queries.shape[0] // layer.keys.shape[0]
    keys, values = (part.float().repeat_interleave(group, 0)[None] for part in (layer.keys, layer.values))
    answer: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        queries.float()[None], keys, values, attn_mask=seen, scale=scale
    )[0]
    return answer
