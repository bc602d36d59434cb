"""How sure a figure is: a paired bootstrap over documents, Wilson's interval for a proportion.

Owns the arithmetic and its refusals. Items of one document are alike, so documents are what is drawn; every
difference and every ratio is taken within a draw, so that what two arms share cancels. Wilson's interval is
of independent trials, so it is taken only where every trial is of a document of its own. Knows nothing of
models, arms and tasks.

A percentile interval of few documents is too narrow. Its tails are therefore taken where Student's t of as
many documents would have them (the expanded percentile interval, Hesterberg, The American Statistician 69,
2015, section 5.3). Of five documents and fewer even these cover too little, and there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...runs.retention_summary import Figure, Interval, Refused

__all__ = ["FEWEST", "LEVEL", "Interval", "PairedBootstrap", "Refused", "wilson"]

LEVEL = 0.95
"""The confidence level of every interval."""

FEWEST = 6
"""Documents that a resampled interval takes: of 2 to 4 it covers the truth in 54 to 87 % only."""

_DRAWS = 4000


class PairedBootstrap:
    """Resamples of documents, the same ones for every figure: that is what makes differences paired.

    `documents` names the document of each item. An item's value may be NaN where an arm has none: such items
    are left out on both sides of a difference. Every figure is a mean over items, or a ratio of two such.

    With `trials` an item's value is 0 or 1, or a difference of two such. Where all documents say the same, no
    draw differs from another, and an interval without width would claim to know. So no interval of trials
    reaches less far than Wilson's of none among as many documents: so large a share may yet say otherwise.
    """

    def __init__(
        self, documents: Sequence[str], *, seed: int = 0, draws: int = _DRAWS, trials: bool = False
    ) -> None:
        self._trials = trials
        names = sorted(set(documents))
        place = {name: at for at, name in enumerate(names)}
        self._document = np.array([place[name] for name in documents], dtype=np.int64)
        count, generator = len(names), np.random.default_rng(seed)
        drawn = (
            generator.multinomial(count, np.full(count, 1 / count), size=draws) if count else np.empty((0, 0))
        )
        self._drawn: NDArray[np.float64] = drawn.astype(np.float64)

    def mean(self, values: ArrayLike) -> Figure:
        """The mean over items."""
        found = np.asarray(values, dtype=np.float64)
        return self._interval(found, np.ones_like(found))

    def difference(self, ours: ArrayLike, theirs: ArrayLike) -> Figure:
        """The mean over items of ours - theirs."""
        return self.mean(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))

    def proportion(self, values: ArrayLike) -> Figure:
        """The share of ones among zeros and ones: Wilson's interval where no two are of one document."""
        found = np.asarray(values, dtype=np.float64)
        known = ~np.isnan(found)
        trials = int(known.sum())
        if trials == np.unique(self._document[known]).size:
            return wilson(float(found[known].sum()), trials)
        return _within(self.mean(found), 0.0, 1.0)

    def ratio(self, over: ArrayLike, under: ArrayLike, what: str) -> Figure:
        """mean(over) / mean(under).

        Refused where what lies under the line, called `what`, is not surely more than nothing.
        """
        above, below = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
        below = np.where(np.isnan(above), np.nan, below)
        above = np.where(np.isnan(below), np.nan, above)
        line = self.mean(below)
        if isinstance(line, Refused):
            return line
        if line.low <= 0:
            return Refused(
                reason=f"{what} is {line.value:.3g} ({line.low:.3g} to {line.high:.3g}): not surely more "
                "than nothing, so there is nothing to take a share of"
            )
        return self._interval(above, below)

    def _interval(self, over: NDArray[np.float64], under: NDArray[np.float64]) -> Figure:
        """sum(over) / sum(under) over items, with its interval; items with NaN are left out."""
        known = ~(np.isnan(over) | np.isnan(under))
        documents = int(np.unique(self._document[known]).size)
        if documents < FEWEST:
            return Refused(
                reason=f"{documents} document{'s' * (documents != 1)}: an interval needs {FEWEST} at least, "
                "so give more (--limit, --items)"
            )
        size = self._drawn.shape[1]
        above = np.bincount(self._document[known], weights=over[known], minlength=size)
        below = np.bincount(self._document[known], weights=under[known], minlength=size)
        lines = self._drawn @ below
        # A draw without any of the known items says nothing.
        said = lines != 0
        drawn = (self._drawn @ above)[said] / lines[said]
        tail = _expanded_tail(documents)
        low, high = (float(end) for end in np.quantile(drawn, [tail, 1 - tail]))
        if self._trials:
            reach, middle, line = _reach(documents), over[known].mean(), under[known].mean()
            low = min(low, float(max(-1.0, middle - reach) / line))
            high = max(high, float(min(1.0, middle + reach) / line))
        return Interval(value=float(above.sum() / below.sum()), low=low, high=high, n=documents)


def wilson(successes: float, trials: int) -> Figure:
    """Wilson's interval of a proportion of independent trials. Raises ValueError for impossible counts."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return Refused(reason="no trials: give more items")
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    share, shrink = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    reach = z / shrink * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(value=share, low=max(0.0, middle - reach), high=min(1.0, middle + reach), n=trials)


def _reach(trials: int) -> float:
    """The upper end of Wilson's interval of none among `trials`."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return z * z / (trials + z * z)


def _within(figure: Figure, least: float, most: float) -> Figure:
    if isinstance(figure, Refused):
        return figure
    return Interval(value=figure.value, low=max(least, figure.low), high=min(most, figure.high), n=figure.n)


def _expanded_tail(documents: int) -> float:
    """The tail of the draws that is left out on each side, so that t's interval would be covered."""
    normal = NormalDist()
    reach = math.sqrt(documents / (documents - 1)) * _student(0.5 + LEVEL / 2, documents - 1)
    return normal.cdf(-reach)


def _student(probability: float, freedom: int) -> float:
    """Student's quantile: exact for 1 and 2 degrees of freedom, beyond by Hill's expansion (to 1e-2 at 3)."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        doubled = 2 * probability - 1
        return doubled * math.sqrt(2 / (1 - doubled * doubled))
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
