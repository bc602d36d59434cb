"""Random numbers for a synthetic trace, drawn from one seeded generator in blocks.

Owns the distributions. A scalar costs a list access instead of a call into numpy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

__all__ = ["Draws", "Popularity"]

_BLOCK = 4096


class Draws:
    """Independent streams of one seed."""

    def __init__(self, seed: int, burstiness: float) -> None:
        streams = [np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(4)]
        shape = 1.0 / burstiness**2
        self._uniform = _Stream(streams[0].random)
        self._normal = _Stream(streams[1].standard_normal)
        self._exponential = _Stream(streams[2].standard_exponential)
        self._gaps = _Stream(lambda size: streams[3].gamma(shape, 1.0 / shape, size))

    def uniform(self) -> float:
        """From [0, 1)."""
        return self._uniform.next()

    def gap(self) -> float:
        """Between two sessions, with mean 1."""
        return self._gaps.next()

    def pause(self, mean: float) -> float:
        """Exponential."""
        return mean * self._exponential.next()

    def length(self, median: int, spread: float, least: int = 1) -> int:
        """Lognormal, in tokens."""
        if median <= 0:
            return 0
        return max(least, round(median * math.exp(spread * self._normal.next())))

    def geometric(self, mean: float) -> int:
        """1 or more."""
        if mean <= 1.0:
            return 1
        return 1 + int(math.log(1.0 - self._uniform.next()) / math.log(1.0 - 1.0 / mean))


class Popularity:
    """Zipf over a pool: item i, from 0, has weight (i + 1) ** -exponent."""

    def __init__(self, items: int, exponent: float) -> None:
        weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
        self._cumulated: list[float] = (np.cumsum(weights) / weights.sum()).tolist()

    @classmethod
    def of_shares(cls, shares: list[float]) -> Popularity:
        """Any weights instead."""
        made = cls(1, 0.0)
        total = sum(shares) or 1.0
        made._cumulated = [one / total for one in accumulate(shares)]
        return made

    def pick(self, uniform: float) -> int:
        """The item that a uniform number stands for."""
        return min(bisect_left(self._cumulated, uniform), len(self._cumulated) - 1)


class _Stream:
    """One distribution, drawn a block at a time."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self._draw = draw
        self._held: list[float] = []

    def next(self) -> float:
        if not self._held:
            self._held = self._draw(_BLOCK).tolist()
            self._held.reverse()
        return self._held.pop()
