"""From the answers of every arm to proportions, and shares of what a context is worth in them.

Owns the figures of items with choices. An answer is a single trial, so a proportion has Wilson's interval;
differences and shares are resampled by document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...runs.retention_summary import ARMS, Figure, Refused
from .asking import Asked
from .intervals import PairedBootstrap, wilson

__all__ = ["Choices"]

_NO_CHOICE = Refused(
    reason="no item has choices: give one of the tasks needle, recall and cloze, or such items"
)


class Choices:
    """The figures of items with choices."""

    def __init__(self, asked: Sequence[Asked], seed: int) -> None:
        self.asked = [one for one in asked if one.chosen]
        self._bootstrap = PairedBootstrap([one.item.document for one in self.asked], seed=seed)
        self.arms = [name for name in ARMS if any(name in one.chosen for one in self.asked)]

    def accuracy(self) -> dict[str, dict[str, Figure]]:
        """By task and arm."""
        return self._proportions(exact=False)

    def exact(self) -> dict[str, dict[str, Figure]]:
        return self._proportions(exact=True)

    def differences(self) -> dict[str, Figure]:
        """Mapped less each other arm, over all items."""
        return {
            name: self._bootstrap.difference(self._right("mapped"), self._right(name))
            for name in self.arms
            if name != "mapped"
        }

    def mapped(self) -> Figure:
        if not self.asked:
            return _NO_CHOICE
        return wilson(sum(self._right("mapped")), len(self.asked))

    def retention(self) -> Figure:
        """Mapped over target."""
        if not self.asked:
            return _NO_CHOICE
        return self._bootstrap.ratio(
            self._right("mapped"), self._right("target"), "the target's own accuracy"
        )

    def floor_retention(self) -> Figure:
        return self._share("none", "what the context is worth (accuracy)")

    def gap_recovered(self) -> Figure:
        return self._share("source", "the gap between target and source (accuracy)")

    def _share(self, floor: str, what: str) -> Figure:
        if not self.asked:
            return _NO_CHOICE
        low, mapped, high = (np.array(self._right(name)) for name in (floor, "mapped", "target"))
        return self._bootstrap.ratio(mapped - low, high - low, what)

    def _right(self, name: str) -> list[float]:
        return [float(one.chosen[name].right) if name in one.chosen else math.nan for one in self.asked]

    def _proportions(self, *, exact: bool) -> dict[str, dict[str, Figure]]:
        tasks = list(dict.fromkeys(one.item.task for one in self.asked))
        found: dict[str, dict[str, Figure]] = {}
        for task in [*tasks, "all"] if tasks else []:
            found[task] = {}
            for name in self.arms:
                chosen = [
                    one.chosen[name]
                    for one in self.asked
                    if name in one.chosen and task in ("all", one.item.task)
                ]
                if chosen:
                    right = sum(one.exact if exact else one.right for one in chosen)
                    found[task][name] = wilson(right, len(chosen))
        return found
