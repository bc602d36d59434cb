"""How far what happened lies from what was predicted, as quantiles of the ratio.

Before enough has been seen, an assumed spread stands in with the weight of a few observations: half of all
ratios at 1, the rest spread up to `assumed`. It fades as observations come in, so a steady link is soon
trusted and a fresh one is not.
"""

from __future__ import annotations

from .histogram import Histogram

__all__ = ["Spread"]

_ASSUMED_WEIGHT = 1.0
_MOST_WEIGHT = 1e4


class Spread:
    """Quantiles of actual / predicted, following the recent past (`fade` per observation)."""

    __slots__ = ("_cached", "_fade", "_seen", "_weight", "assumed", "n")

    def __init__(self, *, assumed: float = 1.5, fade: float = 0.9) -> None:
        self.assumed = assumed
        self.n = 0
        self._fade = fade
        self._seen = Histogram()
        # Of the latest observation. It grows in place of the past fading: one bucket is touched, not all.
        self._weight = 1.0
        self._cached: dict[float, float] = {}

    @property
    def histogram(self) -> Histogram:
        """What was seen; the latest observation counts 1, the past has faded."""
        self._rescale()
        return self._seen

    @histogram.setter
    def histogram(self, histogram: Histogram) -> None:
        self._seen, self._weight = histogram, 1.0
        self._cached.clear()

    def observe(self, ratio: float) -> None:
        """Fold one ratio of actual to predicted seconds."""
        self._weight /= self._fade
        if self._weight > _MOST_WEIGHT:
            self._rescale()
        self._seen.add(ratio, self._weight)
        self.n += 1
        self._cached.clear()

    def quantile(self, q: float) -> float:
        """The ratio that a share `q` of outcomes stays under."""
        found = self._cached.get(q)
        if found is None:
            found = self._cached[q] = self._quantile(q)
        return found

    def _quantile(self, q: float) -> float:
        # The assumption counts as one observation against all that were ever made, so that fading the
        # past does not bring it back.
        weight = _ASSUMED_WEIGHT / (1.0 + self.n)
        if weight < 0.02:
            return self._seen.quantile(q)
        with_assumed = self.histogram.merged(Histogram())
        with_assumed.add(1.0, weight * 0.5)
        for step in range(1, 6):
            with_assumed.add(1.0 + (self.assumed - 1.0) * step / 5, weight * 0.1)
        return with_assumed.quantile(q)

    def _rescale(self) -> None:
        if self._weight != 1.0:
            self._seen.fade(1.0 / self._weight)
            self._weight = 1.0

    def merged(self, other: Spread) -> Spread:
        """Both sets of observations."""
        both = Spread(assumed=max(self.assumed, other.assumed), fade=self._fade)
        both.histogram = self.histogram.merged(other.histogram)
        both.n = self.n + other.n
        return both
