"""How far what happened lies from what was predicted, as quantiles of the ratio.

Before enough has been seen, an assumed spread stands in with the weight of a few observations: half of all
ratios at 1, the rest spread up to `assumed`. It fades as observations come in, so a steady link is soon
trusted and a fresh one is not.
"""

from __future__ import annotations

from .histogram import Histogram

__all__ = ["Spread"]

_ASSUMED_WEIGHT = 1.0


class Spread:
    """Quantiles of actual / predicted, following the recent past (`fade` per observation)."""

    __slots__ = ("_cached", "_fade", "assumed", "histogram", "n")

    def __init__(self, *, assumed: float = 1.5, fade: float = 0.9) -> None:
        self.assumed = assumed
        self.histogram = Histogram()
        self.n = 0
        self._fade = fade
        self._cached: dict[float, float] = {}

    def observe(self, ratio: float) -> None:
        """Fold one ratio of actual to predicted seconds."""
        self.histogram.fade(self._fade)
        self.histogram.add(ratio)
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
            return self.histogram.quantile(q)
        with_assumed = self.histogram.merged(Histogram())
        with_assumed.add(1.0, weight * 0.5)
        for step in range(1, 6):
            with_assumed.add(1.0 + (self.assumed - 1.0) * step / 5, weight * 0.1)
        return with_assumed.quantile(q)

    def merged(self, other: Spread) -> Spread:
        """Both sets of observations."""
        both = Spread(assumed=max(self.assumed, other.assumed), fade=self._fade)
        both.histogram = self.histogram.merged(other.histogram)
        both.n = self.n + other.n
        return both
