"""How long a transfer takes on one leg: setup + share x bytes / rate, learned from transfers on it.

`share` is the mean number of transfers that were on the link meanwhile: a link divides its rate among them.
A link can change for good (throttled, rerouted, a neighbour gone): two observations in a row that are off
on the same side, or one that is off by a factor of two, make the model forget its past, so that a few
transfers are enough to follow. One stall is forgotten the same way, by the next transfer. What the model
keeps is the setup time, since transfers of one size cannot tell setup from rate: without that memory, a
link that became slow would be taken for one that became late, and long transfers would be priced too low.
"""

from __future__ import annotations

from .least_squares import Sums
from .spread import Spread

__all__ = ["LegModel"]

_FADE = 0.85
_ASSUMED_SPREAD = 1.5
_SPREAD_FADE = 0.88
_FAR = 1.12
_VERY_FAR = 2.0
# Weight of the remembered setup, relative to all observations: decides where sizes do not.
_SETUP_WEIGHT = 0.02
# Below this size a transfer is mostly setup; it should not outvote the large ones on the rate.
_SMALL_BYTES = 65_536


class LegModel:
    """Seconds of a transfer over one leg, with the spread of what was predicted."""

    __slots__ = ("_coefficients", "_far", "_setup_calm", "bytes_seen", "n", "setup_before", "spread", "sums")

    def __init__(self) -> None:
        self.sums = Sums(2)
        self.spread = Spread(assumed=_ASSUMED_SPREAD, fade=_SPREAD_FADE)
        self.n = 0
        self.bytes_seen = 0
        self.setup_before = 0.0
        """Setup seconds as known before the last change of the link."""
        self._setup_calm = 0.0
        self._far = 0
        self._coefficients: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether any transfer has been observed."""
        return self.n > 0

    @property
    def coefficients(self) -> tuple[float, float]:
        """(setup seconds, seconds per byte for one transfer alone)."""
        if self._coefficients is None:
            # As if a transfer of nothing had been seen, that took the setup as it was.
            setup, per_byte = self.sums.solve(((_SETUP_WEIGHT, self.setup_before), (0.0, 0.0)))
            self._coefficients = (setup, per_byte)
        return self._coefficients

    @property
    def bytes_per_second(self) -> float:
        """Rate of one transfer alone; infinite while it cannot be told from the setup."""
        per_byte = self.coefficients[1]
        return 1.0 / per_byte if per_byte > 0.0 else float("inf")

    def observe(self, transferred_bytes: int, seconds: float, in_flight: float = 1.0) -> None:
        """Fold one transfer that took `seconds` with `in_flight` transfers on the link, itself included."""
        if transferred_bytes <= 0 or seconds <= 0.0:
            return
        shared = transferred_bytes * max(1.0, in_flight)
        if self.n:
            predicted = self.seconds(transferred_bytes, in_flight)
            if predicted > 0.0:
                self._follow(seconds / predicted)
        self.sums.fade(_FADE)
        # Weighted by size, not by outcome: with weights of 1 / seconds^2 a link that became fifty times
        # slower would go on being priced by its fast past.
        self.sums.add((1.0, shared), seconds, 1.0 / (shared + _SMALL_BYTES) ** 2)
        self.n += 1
        self.bytes_seen += transferred_bytes
        self._coefficients = None

    def _follow(self, ratio: float) -> None:
        side = 1 if ratio > _FAR else -1 if ratio < 1.0 / _FAR else 0
        if self._far == 0:
            # As it was before the first observation that may belong to a changed link.
            self._setup_calm = self.coefficients[0]
        self._far = side if side * self._far <= 0 else self._far + side
        if abs(self._far) < 2 and 1.0 / _VERY_FAR < ratio < _VERY_FAR:
            self.spread.observe(ratio)
            return
        self.setup_before = self._setup_calm
        self.sums = Sums(2)
        self.spread = Spread(assumed=_ASSUMED_SPREAD, fade=_SPREAD_FADE)
        self._far = 0

    def seconds(self, transferred_bytes: int, in_flight: float = 1.0) -> float:
        """Predicted seconds for `transferred_bytes` while `in_flight` transfers share the link."""
        setup, per_byte = self.coefficients
        return setup + per_byte * transferred_bytes * max(1.0, in_flight)

    def merged(self, other: LegModel) -> LegModel:
        """What both have seen."""
        both = LegModel()
        both.sums = self.sums.merged(other.sums)
        both.spread = self.spread.merged(other.spread)
        both.setup_before = min(self.setup_before, other.setup_before)
        both.n = self.n + other.n
        both.bytes_seen = self.bytes_seen + other.bytes_seen
        return both
