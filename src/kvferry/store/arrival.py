"""Hearing of each value as it arrives, while its bytes are still in the processor's cache.

Owns an optional ability of a tier: `get_telling`, a `get` that says which value has just been read. A
verification done then costs about half of one done after the batch, and overlaps with what the network
still brings. A tier without it is asked with `get` and told about afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, TypeGuard

from .tier import Got, Tier, Vector

__all__ = ["Arrived", "TellsArrival", "get_telling"]

Arrived = Callable[[int], None]
"""Called with the index of a key whose value was read (OK), in the calling thread, before the next is."""


class TellsArrival(Protocol):
    """A tier that can tell."""

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        """As `Tier.get`; calls `arrived` once for each key whose status is OK."""


def get_telling(
    tier: Tier, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
) -> bytes:
    """Read through the tier's `get_telling`, or through `get`."""
    if _tells(tier):
        return tier.get_telling(keys, into, timeout_seconds, arrived)
    statuses = tier.get(keys, into, timeout_seconds)
    for i, status in enumerate(statuses):
        if status == Got.OK:
            arrived(i)
    return statuses


def _tells(tier: Tier) -> TypeGuard[TellsArrival]:
    # Somebody who overrides `get` alone, in a subclass or on the object, means all reading.
    return "get" not in getattr(tier, "__dict__", ()) and _class_tells(type(tier))


@cache
def _class_tells(kind: type) -> bool:
    for base in kind.__mro__:
        if "get_telling" in vars(base):
            return True
        if "get" in vars(base):
            return False
    return False
