"""What a fit keeps of the rows that have passed: sums of each target layer, and a few rows.

Owns the gathering of rows into moments, with and without weights, and the even thinning of rows that a
network is trained on. Neither grows with the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .checkpoint import Kept, named, under
from .heads import Wiring
from .layers import Side
from .rows import Rows
from .statistics import CHUNK_ROWS, Moments, blend, effective_lean

__all__ = ["LayerSums", "Thinned"]


class LayerSums:
    """Moments of keys and values of one target layer, with and without weights."""

    def __init__(self, wiring: Wiring, heads: int, keys: int, values: int, weighted: bool) -> None:
        self.wiring, self.heads, self.weighted = wiring, heads, weighted
        self._widths = {"keys": keys, "values": values}
        self._plain: dict[str, Moments] = {}
        self._leaning: dict[str, Moments] = {}

    @property
    def rows(self) -> int:
        return self._plain["keys"].rows if self._plain else 0

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self._plain.values(), *self._leaning.values()))

    def like(self) -> LayerSums:
        made = LayerSums(self.wiring, self.heads, self._widths["keys"], self._widths["values"], self.weighted)
        made._plain = {kind: one.like() for kind, one in self._plain.items()}
        made._leaning = {kind: one.like() for kind, one in self._leaning.items()}
        return made

    def tensors(self) -> Kept:
        """All that was summed, by name."""
        found: Kept = {}
        for part, moments in (("plain", self._plain), ("leaning", self._leaning)):
            for kind, one in moments.items():
                found |= named(f"{part}.{kind}", one.tensors())
        return found

    def take(self, tensors: Kept) -> None:
        """Be what the `tensors` were taken of."""
        for part, moments in (("plain", self._plain), ("leaning", self._leaning)):
            for kind in ("keys", "values"):
                if kept := under(f"{part}.{kind}", tensors):
                    moments[kind] = Moments.of(kept)

    def add(self, rows: Rows, index: int) -> None:
        """Gather and sum, a bounded number of rows at a time: inputs never lie there as a whole."""
        for at, kind in enumerate(("keys", "values")):
            source, target = getattr(rows.source, kind), getattr(rows.target, kind)[index]
            for start in range(0, rows.count, CHUNK_ROWS):
                part = slice(start, start + CHUNK_ROWS)
                x, y = self.wiring.gather(source, part), self.wiring.shape_outputs(target, part)
                plain = self._plain.get(kind)
                if plain is None:
                    plain = self._plain[kind] = Moments(x.shape[0], x.shape[2], y.shape[2], x.device)
                plain.add(x, y)
                if self.weighted:
                    leaning = self._leaning.get(kind)
                    if leaning is None:
                        leaning = self._leaning[kind] = plain.leaning(self.heads)
                    leaning.add(x, target[:, part], rows.weights[index][at][:, part])

    def moments(
        self, kind: str, width: int, alpha: torch.Tensor | None
    ) -> tuple[Moments, torch.Tensor | None]:
        """Moments of the first `width` inputs, under weights where there are any, and their alpha."""
        plain = self._plain[kind].first(width)
        if not self.weighted:
            return plain, None
        leaning = self._leaning[kind].first(width)
        lean = effective_lean(leaning, width) if alpha is None else alpha
        return blend(plain, leaning, lean), lean


class Thinned:
    """At most so many rows, evenly from all that came: when there are too many, every second is dropped."""

    def __init__(self, most: int) -> None:
        self.most, self.step = most, 1
        self._kept: list[Rows] = []

    def add(self, rows: Rows) -> None:
        self._kept.append(_every(rows, self.step))
        while sum(one.count for one in self._kept) > self.most and self.step < 1 << 20:
            self.step *= 2
            self._kept = [_every(one, 2) for one in self._kept]

    def tensors(self) -> Kept:
        """The rows by name; their documents' names, which nothing asks for any more, are let go."""
        found: Kept = {"step": torch.tensor(self.step)}
        for number, rows in enumerate(self._kept):
            found |= named(str(number), rows.tensors())
        return found

    def take(self, tensors: Kept) -> None:
        """Be what the `tensors` were taken of."""
        self.step = int(tensors["step"])
        numbers = sorted({int(name.split(".")[0]) for name in tensors if name != "step"})
        self._kept = [Rows.of("", under(str(number), tensors)) for number in numbers]

    def laid(self, kind: str, index: int, wiring: Wiring) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [panels, rows, p] and outputs [panels, rows, q] of one target layer."""
        x = [wiring.gather(getattr(one.source, kind)) for one in self._kept]
        y = [wiring.shape_outputs(getattr(one.target, kind)[index]) for one in self._kept]
        return torch.cat(x, dim=1), torch.cat(y, dim=1)


def _every(rows: Rows, step: int) -> Rows:
    if step == 1:
        return rows

    def thin(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [part[:, ::step].clone() for part in parts]

    source = Side(thin(rows.source.keys), thin(rows.source.values))
    return Rows(rows.document, source, Side(thin(rows.target.keys), thin(rows.target.values)))
