"""Quantiles as every figure of a run states them: a value that was measured, never one between two.

Owns the quantile and what stands for p95 where there are too few values for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["quantile", "worst"]

_ENOUGH = 20


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that a share `q` of the values does not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def worst(values: Sequence[float]) -> tuple[float | None, bool]:
    """p95, or the largest where there are fewer than 20 values; and whether it is the largest."""
    if len(values) < _ENOUGH:
        return max(values, default=None), True
    return quantile(values, 0.95), False
