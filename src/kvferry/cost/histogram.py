"""A mergeable histogram of positive numbers with a fixed relative resolution.

Buckets are logarithmic: 32 to the octave, so a quantile is within 1.1 % of an observed value. Counts are
real numbers, because an estimator that must follow a changing link fades what it saw before. Merging adds
counts, so it is associative and commutative.
"""

from __future__ import annotations

from math import floor, log2

__all__ = ["Histogram"]

_PER_OCTAVE = 32
_LEAST, _MOST = 2.0**-40, 2.0**40


class Histogram:
    """Weighted log-bucket histogram; values outside 2^-40..2^40 land in the end buckets."""

    __slots__ = ("_counts", "total")

    def __init__(self, counts: dict[int, float] | None = None) -> None:
        self._counts: dict[int, float] = dict(counts) if counts else {}
        self.total = sum(self._counts.values())

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count `value`; zero and negative values count as the smallest."""
        bucket = floor(log2(min(max(value, _LEAST), _MOST)) * _PER_OCTAVE)
        self._counts[bucket] = self._counts.get(bucket, 0.0) + weight
        self.total += weight

    def fade(self, factor: float) -> None:
        """Multiply every count by `factor` in [0, 1]; counts too small to matter are forgotten."""
        self._counts = {b: c * factor for b, c in self._counts.items() if c * factor > 1e-4}
        self.total = sum(self._counts.values())

    def quantile(self, q: float) -> float:
        """Geometric middle of the bucket that holds quantile `q`; ValueError when empty."""
        if not self._counts:
            raise ValueError("an empty histogram has no quantiles")
        want = q * self.total
        seen = 0.0
        bucket = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= want - 1e-12:
                break
        return float(2.0 ** ((bucket + 0.5) / _PER_OCTAVE))

    def merged(self, other: Histogram) -> Histogram:
        """The histogram of both sets of observations."""
        counts = dict(self._counts)
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0.0) + count
        return Histogram(counts)

    def counts(self) -> dict[int, float]:
        """Bucket index to count, for saving; `Histogram(counts)` restores it."""
        return dict(self._counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self._counts == other._counts

    def __repr__(self) -> str:
        return f"Histogram(total={self.total:g}, buckets={len(self._counts)})"
