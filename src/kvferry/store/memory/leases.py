"""Leases in a dictionary. The caller holds a lock of its own."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Leases"]


class Leases:
    """Names, each with a holder for a while; times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[bytes, float]] = {}

    def is_taken(self, name: bytes, now: float) -> bool:
        return name in self._held and self._held[name][1] > now

    def take(self, names: Sequence[bytes], holder: bytes, now: float, until: float) -> bytes:
        """One byte per name, 1 where `holder` has it now."""
        self._held = {name: lease for name, lease in self._held.items() if lease[1] > now}
        taken = bytearray(len(names))
        for i, name in enumerate(names):
            if self._held.get(name, (holder, 0.0))[0] == holder:
                self._held[name] = (holder, until)
                taken[i] = 1
        return bytes(taken)

    def give_back(self, names: Sequence[bytes], holder: bytes) -> None:
        for name in names:
            if name in self._held and self._held[name][0] == holder:
                del self._held[name]
