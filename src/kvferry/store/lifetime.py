"""How long a block of a data class is worth keeping: what follows from when blocks are used again.

Owns the estimate of an idle life per class, which follows the observed reuse intervals and never exceeds the
configured bound. A life that is too long costs nothing while there is room: eviction is by policy. It says
when a block may be dropped that nobody asks for any more. Pure: time arrives as an argument.

Intervals must come from what was asked for, not from what was found: a block that was dropped too early is
never read again, so lives that follow hits alone shrink for ever. `Reuses` watches the asking.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from ..cost.histogram import Histogram

__all__ = ["Lifetimes", "Reuses"]

_QUANTILE = 0.95
_FACTOR = 2.0
_LEAST_INTERVALS = 20
_MEMORY = 4096.0
"""Intervals that a class remembers: beyond them all are faded to the half, so that lives follow changes."""


class Lifetimes:
    """Reuse intervals by data class, and the lives that follow from them.

    A class's life is `factor` times the quantile `quantile` of its intervals, or the bound while fewer than
    20 were observed.
    """

    def __init__(
        self,
        *,
        quantile: float = _QUANTILE,
        factor: float = _FACTOR,
        intervals: Mapping[str, Histogram] | None = None,
    ) -> None:
        self.quantile, self.factor = quantile, factor
        self._intervals = dict(intervals or {})

    def observe(self, data_class: str, interval_seconds: float) -> None:
        """Blocks of the class were used again after so long."""
        histogram = self._intervals.setdefault(data_class, Histogram())
        histogram.add(interval_seconds)
        if histogram.total > _MEMORY:
            histogram.fade(0.5)

    def life_seconds(self, data_class: str, bound_seconds: float | None) -> float | None:
        """How long a block of the class may lie idle: at most the bound, None for no end."""
        histogram = self._intervals.get(data_class)
        if histogram is None or histogram.total < _LEAST_INTERVALS:
            return bound_seconds
        life = self.factor * histogram.quantile(self.quantile)
        return life if bound_seconds is None else min(life, bound_seconds)

    def merged(self, other: Lifetimes) -> Lifetimes:
        """The estimate from what both observed, with this one's quantile and factor."""
        both = {
            name: self._intervals.get(name, Histogram()).merged(other._intervals.get(name, Histogram()))
            for name in sorted({*self._intervals, *other._intervals})
        }
        return Lifetimes(quantile=self.quantile, factor=self.factor, intervals=both)

    def intervals(self) -> dict[str, Histogram]:
        """The observations by class, for saving; `Lifetimes(intervals=...)` restores them."""
        return {name: Histogram(histogram.counts()) for name, histogram in self._intervals.items()}


class Reuses:
    """Watches a sample of the keys that are asked for, and tells `lifetimes` after how long they come again.

    One key in `one_in` is watched (keys are uniform hashes, so a sample of keys is a fair one), at most
    `keys` of them, those asked for last. A key counts when an interval is its longest so far: a prompt that
    everybody uses every second would otherwise drown those that come back after minutes.
    """

    def __init__(self, lifetimes: Lifetimes, *, one_in: int = 16, keys: int = 8192) -> None:
        if not 1 <= one_in <= 128:
            raise ValueError(f"one key in 1 to 128 can be watched, not one in {one_in}")
        self._lifetimes = lifetimes
        self._one_in = one_in
        self._limit = keys
        self._seen: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def asked(self, now: float, data_class: str, keys: Sequence[bytes]) -> None:
        """A request asked for these keys, held or not."""
        one_in = self._one_in
        # Keys are uniform, so their last byte is as good a sample as all of them, and cheaper to look at.
        for key in [key for key in keys if not key[-1] % one_in]:
            last, longest = self._seen.pop(key, (now, -1.0))
            interval = now - last
            if longest >= 0.0 and interval > longest:
                self._lifetimes.observe(data_class, interval)
            self._seen[key] = (now, max(interval, longest, 0.0))
            if len(self._seen) > self._limit:
                self._seen.popitem(last=False)
