"""The line that maps inputs to outputs, from moments alone; and how well it does on other rows.

Ridge about the means: W = (X'X + lambda I)^-1 X'Y, b = mean(y) - mean(x) W. Lambda is relative: a multiple of
the mean variance of the inputs, summed over the rows (trace(X'X) / p), so that one value means the same for
any model, number of rows and layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import ModelError
from .statistics import Moments

__all__ = ["LAMBDAS", "Line", "best_line", "explained", "residual_squares", "ridge"]

LAMBDAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Relative lambdas that are tried on held-out rows."""


@dataclass(frozen=True, slots=True)
class Line:
    """y = x W + b for each panel: weight [panels, p, q], bias [panels, q]."""

    weight: torch.Tensor
    bias: torch.Tensor

    @property
    def parameters(self) -> int:
        return self.weight.numel() + self.bias.numel()

    def joined(self) -> Line:
        """Panels that share their inputs as one: weight [1, p, panels q]."""
        panels, inputs, outputs = self.weight.shape
        weight = self.weight.permute(1, 0, 2).reshape(1, inputs, panels * outputs)
        return Line(weight.contiguous(), self.bias.reshape(1, -1).contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [panels, rows, p] -> [panels, rows, q]."""
        return torch.baddbmm(self.bias[:, None], x, self.weight)


def ridge(moments: Moments, relative_lambda: float) -> Line:
    """The centred ridge of every panel, float64. Raises `ModelError` where it has no single solution."""
    xx, xy, _ = moments.centred()
    trace = xx.diagonal(dim1=1, dim2=2).sum(1)
    scale = torch.where(trace > 0, trace / moments.inputs, torch.ones_like(trace))
    damped = xx + torch.diag_embed((relative_lambda * scale)[:, None].expand(-1, moments.inputs))
    factor, failed = torch.linalg.cholesky_ex(damped)
    if bool(failed.any()):
        raise ModelError(
            f"a ridge of {moments.inputs} inputs over {moments.rows} rows with lambda {relative_lambda:g} "
            "has no single solution: give more text or a larger lambda"
        )
    weight = torch.cholesky_solve(xy, factor)
    mean_x, mean_y = moments.means()
    return Line(weight, mean_y - (mean_x[:, None] @ weight)[:, 0])


def residual_squares(line: Line, held: Moments) -> torch.Tensor:
    """Weighted sum of squares of what the line leaves on held-out rows, [panels, q]."""
    xx, xy, yy = held.centred()
    weight = line.weight.double()
    mean_x, mean_y = held.means()
    off = mean_y - (mean_x[:, None] @ weight)[:, 0] - line.bias.double()
    spread = yy - 2 * (weight * xy).sum(1) + (weight * (xx @ weight)).sum(1)
    return spread.clamp_min(0) + held.weight[:, None] * off * off


def explained(line: Line, held: Moments, heads: int) -> torch.Tensor:
    """R2 of every head on held-out rows, [heads]: the numbers of a head are pooled.

    1 - left / variance about the held-out mean; a head that never varies counts as explained by nothing.
    """
    left = residual_squares(line, held).reshape(heads, -1).sum(1)
    total = held.centred()[2].reshape(heads, -1).sum(1)
    known = total > 0
    return torch.where(known, 1 - left / torch.where(known, total, 1.0), torch.zeros_like(total))


def best_line(
    fitted: Moments, held: Moments, heads: int, lambdas: Sequence[float] = LAMBDAS
) -> tuple[Line, float, float]:
    """The line whose lambda does best on held-out rows; (line, lambda, mean R2 over heads)."""
    found: tuple[Line, float, float] | None = None
    for value in lambdas:
        line = ridge(fitted, value)
        score = float(explained(line, held, heads).mean())
        if found is None or score > found[2]:
            found = (line, value, score)
    if found is None:
        raise ValueError("no lambda was given")
    return found
