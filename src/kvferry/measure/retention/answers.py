"""From the answers of every arm to proportions, and shares of what a context is worth in them.

Owns the figures of items with choices. An answer is a single trial; answers of one document are not
independent ones. So a proportion has Wilson's interval where each answer is of a document of its own, and is
resampled by document otherwise, as differences and shares always are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...runs.retention_summary import ARMS, Figure, Refused
from .asking import Asked
from .intervals import PairedBootstrap

__all__ = ["Choices"]

_NO_CHOICE = Refused(
    reason="no item has choices: give one of the tasks needle, recall and cloze, or such items"
)


class Choices:
    """The figures of items with choices."""

    def __init__(self, asked: Sequence[Asked], seed: int) -> None:
        self.asked = [one for one in asked if one.chosen]
        self._bootstrap = PairedBootstrap([one.item.document for one in self.asked], seed=seed, trials=True)
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
        return self._bootstrap.proportion(self._right("mapped"))

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
                values = [
                    float(one.chosen[name].exact if exact else one.chosen[name].right)
                    if name in one.chosen and task in ("all", one.item.task)
                    else math.nan
                    for one in self.asked
                ]
                if not all(math.isnan(value) for value in values):
                    found[task][name] = self._bootstrap.proportion(values)
        return found
