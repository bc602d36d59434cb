"""Reused tokens by the seconds since their last use, in steps of a quarter octave, for every class.

Owns the histogram and the life that follows from it. A quantile is the upper edge of its step, so a life
taken from it is never too short, and never longer than the longest interval; steps are 19 % wide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .result import IntervalBin

__all__ = ["STEPS", "Intervals", "edge", "step_of"]

_Int64 = npt.NDArray[np.int64]
STEPS = 112
_LEAST = -4
"""Everything below 2 ** -4 s is one step."""


def edge(step: int) -> float:
    """Upper edge of a step, in seconds; the last one is open."""
    return float("inf") if step >= STEPS - 1 else float(2.0 ** (_LEAST + step / 4))


def step_of(seconds: npt.NDArray[np.float64]) -> _Int64:
    """The step of each interval."""
    with np.errstate(divide="ignore"):
        step = np.ceil((np.log2(seconds) - _LEAST) * 4)
    clipped: _Int64 = np.clip(step, 0, STEPS - 1).astype(np.int64)
    return clipped


class Intervals:
    """Tokens by class and step."""

    def __init__(self) -> None:
        self._tokens = np.zeros((0, STEPS), dtype=np.int64)
        self._longest = np.zeros(0)
        """The longest interval in seconds, by class."""

    def add(self, classes: _Int64, seconds: npt.NDArray[np.float64], tokens: _Int64) -> None:
        """Count reuses: class, seconds since the last use, tokens."""
        if not len(classes):
            return
        need = int(classes.max()) + 1
        if need > len(self._tokens):
            longer = np.zeros((max(need, 2 * len(self._tokens)), STEPS), dtype=np.int64)
            longer[: len(self._tokens)] = self._tokens
            self._tokens = longer
            self._longest = np.concatenate([self._longest, np.zeros(len(longer) - len(self._longest))])
        np.maximum.at(self._longest, classes, seconds)
        cell = classes * STEPS + step_of(seconds)
        flat = self._tokens.reshape(-1)
        flat += np.bincount(cell, weights=tokens, minlength=flat.size).astype(np.int64)

    def quantile_of(self, classes: Sequence[int], share: float) -> float | None:
        """Seconds within which `share` of these classes' reused tokens came back; None without reuse."""
        known = [c for c in classes if c < len(self._tokens)]
        row = self._tokens[known].sum(axis=0)
        total = int(row.sum())
        if total == 0:
            return None
        within = edge(int(np.searchsorted(np.cumsum(row), share * total * (1 - 1e-12))))
        return min(within, float(self._longest[known].max()))

    def bins(self) -> tuple[IntervalBin, ...]:
        """The histogram of all classes, in octaves, without empty ends; the last one ends with the longest
        interval."""
        longest = float(self._longest.max(initial=0.0))
        row = self._tokens.sum(axis=0)
        found = []
        for low in range(1, STEPS, 4):
            tokens = int(row[low : low + 4].sum()) + (int(row[0]) if low == 1 else 0)
            start = 0.0 if low == 1 else edge(low - 1)
            found.append(IntervalBin(from_seconds=start, to_seconds=edge(low + 3), tokens=tokens))
        while found and found[-1].tokens == 0:
            found.pop()
        while found and found[0].tokens == 0:
            found.pop(0)
        if found and found[-1].from_seconds < longest < found[-1].to_seconds:
            last = found.pop()
            found.append(IntervalBin(from_seconds=last.from_seconds, to_seconds=longest, tokens=last.tokens))
        return tuple(found)
