"""What loads take from others: decode steps that grow while a load is in flight, and waits for held memory.

Two means are kept, of decode steps with and without transfers in flight. Their relative growth, times the
length of a load, times the requests that were decoding, is what a load costs the others. A wait because
blocks were held for a load is charged in full, as a mean per load.
"""

from __future__ import annotations

__all__ = ["InterferenceModel"]

_KEEP = 0.99
_ENOUGH = 5.0


class InterferenceModel:
    """Seconds taken from other requests by loads, as measured here."""

    __slots__ = ("alone_n", "alone_seconds", "beside_n", "beside_seconds", "held_seconds", "loads")

    def __init__(self) -> None:
        self.alone_n = 0.0
        self.alone_seconds = 0.0
        self.beside_n = 0.0
        self.beside_seconds = 0.0
        self.held_seconds = 0.0
        self.loads = 0.0

    def observe_decode(self, seconds: float, transfers_in_flight: int) -> None:
        """Fold one decode step (per running request, so that batches of all sizes compare)."""
        if transfers_in_flight > 0:
            self.beside_n = self.beside_n * _KEEP + 1.0
            self.beside_seconds = self.beside_seconds * _KEEP + seconds
        else:
            self.alone_n = self.alone_n * _KEEP + 1.0
            self.alone_seconds = self.alone_seconds * _KEEP + seconds

    def observe_load(self, held_seconds: float = 0.0) -> None:
        """Fold one load, with the seconds that requests waited because blocks were held for it."""
        self.loads = self.loads * _KEEP + 1.0
        self.held_seconds = self.held_seconds * _KEEP + held_seconds

    @property
    def growth(self) -> float:
        """Relative growth of a decode step beside a transfer; 0 until both have been seen often enough."""
        if self.alone_n < _ENOUGH or self.beside_n < _ENOUGH or self.alone_seconds <= 0.0:
            return 0.0
        alone = self.alone_seconds / self.alone_n
        return max(0.0, self.beside_seconds / self.beside_n / alone - 1.0)

    @property
    def held_seconds_per_load(self) -> float:
        """Mean seconds that others waited for memory held by a load."""
        return self.held_seconds / self.loads if self.loads else 0.0

    def merged(self, other: InterferenceModel) -> InterferenceModel:
        """What both have seen."""
        both = InterferenceModel()
        for name in self.__slots__:
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both
