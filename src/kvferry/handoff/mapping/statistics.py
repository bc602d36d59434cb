"""Second moments of a regression's inputs and outputs, collected in one pass.

Owns what must be known of the rows to fit a line and to judge one: nothing grows with their number. Sums are
float64, about a point near the mean (the first rows'), since the bias of a key can be most of its square.
A regression comes in panels, one for each set of inputs: all target heads share one panel where they have
the same inputs, and have one each where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

__all__ = ["CHUNK_ROWS", "Moments", "blend", "effective_lean"]

CHUNK_ROWS = 1024
"""Rows that are made float64 at a time."""

_SUMS = ("weight", "weight_squares", "x", "y", "xx", "xy", "yy")


class Moments:
    """Weighted moments of inputs [panels, rows, p] and outputs [panels, rows, q].

    Raises ValueError where shapes do not fit those that were given first.
    """

    def __init__(self, panels: int, inputs: int, outputs: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.panels, self.inputs, self.outputs = panels, inputs, outputs
        self.rows = 0
        """How many rows came, whatever they weighed."""
        self.weight = zeros(panels)
        self.weight_squares = zeros(panels)
        self.x, self.y = zeros(panels, inputs), zeros(panels, outputs)
        self.xx, self.xy = zeros(panels, inputs, inputs), zeros(panels, inputs, outputs)
        self.yy = zeros(panels, outputs)
        self.origin: tuple[torch.Tensor, torch.Tensor] | None = None
        """The point that sums are about: ([panels, p], [panels, q])."""

    @property
    def nbytes(self) -> int:
        """Memory held, the same however many rows have come."""
        parts = (self.x, self.y, self.xx, self.xy, self.yy, self.weight, self.weight_squares)
        return sum(part.numel() * part.element_size() for part in parts)

    def add(self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Take rows in. x [panels or 1, rows, p], y [panels or 1, rows, q], weights [panels or 1, rows]."""
        rows = x.shape[1]
        if x.shape[2] != self.inputs or y.shape[1:] != (rows, self.outputs):
            raise ValueError(f"rows {tuple(x.shape)} -> {tuple(y.shape)} for {self.inputs} -> {self.outputs}")
        if not rows:
            return
        self._begin(x, y)
        for start in range(0, rows, CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            self._add(x[:, part], y[:, part], None if weights is None else weights[:, part])
        self.rows += rows

    def merge(self, other: Moments) -> None:
        """Take in what another collected about the same origin (`Moments.like`)."""
        if other.origin is None:
            return
        if self.origin is None:
            self.origin = other.origin
        if not all(torch.equal(a, b) for a, b in zip(self.origin, other.origin, strict=True)):
            raise ValueError("moments about different origins cannot be added")
        for name in _SUMS:
            getattr(self, name).add_(getattr(other, name))
        self.rows += other.rows

    def like(self) -> Moments:
        """Empty moments of the same shape about the same origin."""
        made = Moments(self.panels, self.inputs, self.outputs, self.x.device)
        made.origin = self.origin
        return made

    def leaning(self, parts: int) -> Moments:
        """Empty moments of `parts` panels about the same origin, for rows that weigh differently in each."""
        split = self.apart(parts)
        made = Moments(parts, split.inputs, split.outputs, self.x.device)
        made.origin = split.origin
        return made

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name, to be kept; `of` makes it again."""
        found = {name: getattr(self, name) for name in _SUMS}
        found["rows"] = torch.tensor(self.rows)
        if self.origin is not None:
            found["origin_x"], found["origin_y"] = self.origin
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Moments:
        """Moments as they were when their `tensors` were taken."""
        panels, inputs, outputs = tensors["xy"].shape
        made = cls(panels, inputs, outputs, tensors["xy"].device)
        for name in _SUMS:
            setattr(made, name, tensors[name])
        made.rows = int(tensors["rows"])
        if "origin_x" in tensors:
            made.origin = (tensors["origin_x"], tensors["origin_y"])
        return made

    def first(self, inputs: int) -> Moments:
        """The regression on the first `inputs` of the inputs alone; shares the memory."""
        made = Moments.__new__(Moments)
        made.panels, made.inputs, made.outputs, made.rows = self.panels, inputs, self.outputs, self.rows
        made.weight, made.weight_squares = self.weight, self.weight_squares
        made.x, made.y, made.yy = self.x[:, :inputs], self.y, self.yy
        made.xx, made.xy = self.xx[:, :inputs, :inputs], self.xy[:, :inputs]
        made.origin = None if self.origin is None else (self.origin[0][:, :inputs], self.origin[1])
        return made

    def apart(self, parts: int) -> Moments:
        """One panel whose outputs are `parts` heads, as `parts` panels with the same inputs."""
        if self.panels == parts:
            return self
        if self.panels != 1 or self.outputs % parts:
            raise ValueError(f"{self.panels} panels of {self.outputs} outputs cannot be {parts} panels")

        def spread(one: torch.Tensor) -> torch.Tensor:
            return one.expand(parts, *one.shape[1:])

        def cut(one: torch.Tensor) -> torch.Tensor:
            return one.reshape(parts, -1)

        made = Moments.__new__(Moments)
        made.panels, made.inputs, made.outputs = parts, self.inputs, self.outputs // parts
        made.rows, made.weight, made.weight_squares = (
            self.rows,
            spread(self.weight),
            spread(self.weight_squares),
        )
        made.x, made.y, made.xx, made.yy = spread(self.x), cut(self.y), spread(self.xx), cut(self.yy)
        made.xy = self.xy.reshape(self.inputs, parts, -1).transpose(0, 1)
        made.origin = None if self.origin is None else (spread(self.origin[0]), cut(self.origin[1]))
        return made

    def means(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean input [panels, p] and mean output [panels, q]."""
        if self.origin is None:
            raise ValueError("no rows have come")
        total = self._total()
        return self.origin[0] + self.x / total, self.origin[1] + self.y / total

    def centred(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """X'X [panels, p, p], X'Y [panels, p, q] and the diagonal of Y'Y [panels, q] about the means."""
        total = self._total()
        mean_x, mean_y = self.x / total, self.y / total
        xx = self.xx - self.x[:, :, None] * mean_x[:, None, :]
        xy = self.xy - self.x[:, :, None] * mean_y[:, None, :]
        return xx, xy, self.yy - self.y * mean_y

    def _total(self) -> torch.Tensor:
        return self.weight.clamp_min(torch.finfo(torch.float64).tiny)[:, None]

    def _begin(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.origin is None:
            near_x = x[:, :CHUNK_ROWS].double().mean(1).expand(self.panels, -1)
            near_y = y[:, :CHUNK_ROWS].double().mean(1).expand(self.panels, -1)
            self.origin = (near_x.clone(), near_y.clone())

    def _add(self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None) -> None:
        assert self.origin is not None  # set by _begin
        x = x.double() - self.origin[0][: x.shape[0], None]
        y = y.double() - self.origin[1][: y.shape[0], None]
        if weights is None:
            weighted, sums = x, torch.full_like(self.weight, x.shape[1])
            self.weight_squares += sums
            self.y += y.sum(1)
            self.yy += (y * y).sum(1)
        else:
            held = weights.double()
            weighted, sums = x * held[:, :, None], held.sum(1)
            self.weight_squares += (held * held).sum(1)
            self.y += (y * held[:, :, None]).sum(1)
            self.yy += (y * y * held[:, :, None]).sum(1)
        self.weight += sums
        self.x += weighted.sum(1)
        turned = weighted.transpose(1, 2)
        self.xx += turned @ x
        self.xy += turned @ y


def effective_lean(leaning: Moments, inputs: int) -> torch.Tensor:
    """The largest alpha of the weights 1 + alpha (r - 1) that leaves enough effective rows, [panels].

    `leaning` was collected with weights r. Enough is min(n, 2 p): n / (1 + alpha^2 CV^2) rows are what n rows
    of such weights are worth (arXiv 2609.00891). At most 1, since a weight may not be negative.
    """
    rows = leaning.rows
    if not rows:
        return torch.zeros_like(leaning.weight)
    mean = leaning.weight / rows
    spread = (leaning.weight_squares / rows / (mean * mean).clamp_min(1e-300) - 1).clamp_min(1e-12)
    room = max(rows / min(rows, 2 * inputs) - 1, 0.0)
    return (math.sqrt(room) / spread.sqrt()).clamp(max=1.0)


def blend(plain: Moments, leaning: Moments, alpha: torch.Tensor) -> Moments:
    """Moments under the weights 1 + alpha (r - 1), r of mean 1, for any alpha [panels] after the pass.

    Weighted sums are linear in the weights, so equal rows collected once with weight 1 and once with weight
    r give every alpha between. Raises ValueError where the two are not about the same origin.
    """
    plain = plain.apart(leaning.panels)
    if plain.origin is None or leaning.origin is None:
        raise ValueError("no rows have come")
    if not all(torch.equal(a, b) for a, b in zip(plain.origin, leaning.origin, strict=True)):
        raise ValueError("moments about different origins cannot be blended")
    share = alpha * plain.rows / leaning.weight.clamp_min(1e-300)
    made = leaning.like()
    made.rows = plain.rows
    for name in ("weight", "x", "y", "xx", "xy", "yy"):
        one, other = getattr(plain, name), getattr(leaning, name)
        axes = (slice(None),) + (None,) * (one.ndim - 1)
        setattr(made, name, one * (1 - alpha)[axes] + other * share[axes])
    return made
