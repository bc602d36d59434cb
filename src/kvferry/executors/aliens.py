"""Finds blocks that are held under another namespace, so that a miss can be booked as incompatible.

A pool key is derived from the namespace, so another namespace's block is simply not found. The manifests of
the other namespaces in the pool name their digests; with our own secret their keys can be derived, and only
theirs: what another tenant's secret protects stays out of reach.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from ..errors import StoreError
from ..keys.pool import pool_key

__all__ = ["Aliens"]

log = logging.getLogger(__name__)

_MOST_NAMESPACES = 8


class Aliens:
    """The other namespaces of a pool, read again every `refresh_seconds`."""

    def __init__(
        self,
        secret: bytes,
        read_others: Callable[[bytes], Mapping[bytes, str]],
        now: Callable[[], float],
        refresh_seconds: float = 30.0,
    ) -> None:
        """`read_others(ours)` gives digest -> the names of the fields that differ from namespace `ours`."""
        self._secret = secret
        self._read_others = read_others
        self._now = now
        self._refresh_seconds = refresh_seconds
        self._others: dict[bytes, tuple[float, list[tuple[bytes, str]]]] = {}
        self._reading = threading.Lock()

    def others(self, ours: bytes) -> list[tuple[bytes, str]]:
        """(digest, names of the fields that differ from ours) of the first few other namespaces.

        A pool that does not tell leaves what was known; it is not asked again before the next refresh,
        so that not every lookup pays for it. Only one thread reads, the others take what is known.
        """
        read_at, known = self._others.get(ours, (float("-inf"), []))
        if self._now() - read_at < self._refresh_seconds or not self._reading.acquire(blocking=False):
            return known
        try:
            known = list(self._read_others(ours).items())[:_MOST_NAMESPACES]
        except StoreError:
            log.debug("the pool did not name its namespaces", exc_info=True)
        finally:
            self._others[ours] = (self._now(), known)
            self._reading.release()
        return known

    def keys(self, digest: bytes, block_hashes: Sequence[bytes]) -> list[bytes]:
        """The keys of these blocks in another namespace."""
        return [pool_key(self._secret, digest, block_hash) for block_hash in block_hashes]
