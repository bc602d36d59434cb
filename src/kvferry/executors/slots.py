"""A cap on loads from a pool, all replicas together: each load holds a lease on one of so many slots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from hashlib import blake2b

from ..errors import StoreError
from ..store.framed import FramedTier
from ..store.tier import Kind

__all__ = ["LoadSlots"]

log = logging.getLogger(__name__)


class LoadSlots:
    """`cap` slots of `slot_seconds` each; None for no cap. `holder` names this replica in leases."""

    def __init__(self, cap: int | None, holder: bytes, slot_seconds: float) -> None:
        self._cap = cap
        self._holder = holder
        self._seconds = slot_seconds

    def take(self, tier: FramedTier, left: Callable[[], float]) -> bytes | None:
        """A slot for this thread: None where there is no cap, b"" where all are taken."""
        if self._cap is None or tier.kind is not Kind.POOL:
            return None
        # Replicas begin at different slots, and try one at a time: to take several and give back all but
        # one would make others believe that the pool is full.
        holder = self._name()
        first = int.from_bytes(blake2b(holder, digest_size=4).digest(), "big") % self._cap
        for number in range(self._cap):
            name = b"load-slot/%d" % ((first + number) % self._cap)
            if tier.lease([name], holder, self._seconds, left()) == b"\x01":
                return name
        return b""

    def give(self, tier: FramedTier, slot: bytes) -> None:
        """Give a slot back; one that cannot be expires by itself."""
        try:
            tier.release([slot], self._name(), 1.0)
        except StoreError:
            log.debug("a load slot could not be given back; it expires by itself", exc_info=True)

    def _name(self) -> bytes:
        return self._holder + threading.get_ident().to_bytes(8, "big")
