"""Does sharing save time here? The running comparison of the requests that may load with the holdout.

Both arms hold requests for which blocks were found, so they differ in nothing but a hash of their ids.
Compared is the time to a ready prompt over the predicted time of recompute, in logarithms, so that long and
short prompts weigh the same. The past fades, about a thousand requests of an arm count. Welch's interval;
when sharing costs beyond doubt, it is off. The question is asked again with every request, so a 95 % interval
would sooner or later say yes by chance: that verdict asks for a wider one.
"""

from __future__ import annotations

from math import exp, log, sqrt

import msgspec

__all__ = ["Saving", "Trial"]

_Z = 1.96
_Z_OF_VERDICT = 4.0
_KEEP = 0.999
_LEAST_EACH = 20


class Saving(msgspec.Struct, frozen=True):
    """Estimated share of recompute time that sharing saves (negative: costs), with its 95 % interval."""

    share: float
    low: float
    high: float
    treated: int
    held_out: int

    @property
    def costs(self) -> bool:
        """Whether sharing makes requests slower, beyond doubt however often one looks."""
        if self.high >= 0.0:
            return False
        slower = log(1.0 - self.share)
        error = slower - log(1.0 - self.high)
        return slower - error * (_Z_OF_VERDICT / _Z) > 0.0


class _Moments:
    """Mean and variance of a series whose past fades."""

    __slots__ = ("mean", "seen", "sum_squares", "weight")

    def __init__(self) -> None:
        self.seen = 0
        self.weight = 0.0
        self.mean = 0.0
        self.sum_squares = 0.0

    def add(self, x: float) -> None:
        self.seen += 1
        self.weight = self.weight * _KEEP + 1.0
        delta = x - self.mean
        self.mean += delta / self.weight
        self.sum_squares = self.sum_squares * _KEEP + delta * (x - self.mean)

    @property
    def variance_of_mean(self) -> float:
        return self.sum_squares / (self.weight - 1.0) / self.weight


class Trial:
    """Folds outcomes of both arms."""

    def __init__(self) -> None:
        self._treated = _Moments()
        self._held_out = _Moments()

    def observe(self, *, treated: bool, ready_seconds: float, recompute_seconds: float) -> None:
        """One request for which blocks were found: how long until its prompt was ready."""
        if ready_seconds > 0.0 and recompute_seconds > 0.0:
            arm = self._treated if treated else self._held_out
            arm.add(log(ready_seconds / recompute_seconds))

    def saving(self) -> Saving | None:
        """None until both arms have been seen often enough."""
        a, b = self._treated, self._held_out
        if min(a.seen, b.seen) < _LEAST_EACH:
            return None
        difference = a.mean - b.mean
        error = _Z * sqrt(a.variance_of_mean + b.variance_of_mean)
        return Saving(
            share=1.0 - exp(difference),
            low=1.0 - exp(difference + error),
            high=1.0 - exp(difference - error),
            treated=a.seen,
            held_out=b.seen,
        )
