"""A tier behind a link of a given speed: the limit is in the data path, not in a model of it.

Owns the pacing. The link carries one value at a time, in the order in which threads ask; a value takes at
least its bytes / rate, and time that a busy link lost to scheduling is made good by at most one value's
worth (the burst). With no limit, batches pass whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..errors import ConfigError
from .arrival import Arrived, get_telling
from .hints import Hints, put_hinted
from .tier import Got, Put, Tier, Vector
from .wrapper import Wrapper

__all__ = ["RateLimited"]


class RateLimited(Wrapper):
    """`tier` at no more than `bytes_per_second`, reading and writing together; None is no limit.

    Values that cannot arrive before the deadline are LATE (reads) or FAILED (writes), and the call returns
    at its deadline, as it would over a slow link.
    """

    def __init__(self, tier: Tier, bytes_per_second: float | None, clock: Clock) -> None:
        super().__init__(tier)
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = float("-inf")
        self._rate: float | None = None
        self.bytes_per_second = bytes_per_second

    @property
    def bytes_per_second(self) -> float | None:
        """The limit; may be set at any time, and holds from the next value on."""
        return self._rate

    @bytes_per_second.setter
    def bytes_per_second(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ConfigError(f"bytes_per_second must be above 0, or None for no limit, not {rate}")
        self._rate = rate

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        if self._rate is None:
            return get_telling(self.tier, keys, into, timeout_seconds, arrived)
        return self._paced(
            [_nbytes(parts) for parts in into],
            lambda i, left: get_telling(
                self.tier, keys[i : i + 1], into[i : i + 1], left, lambda _: arrived(i)
            ),
            timeout_seconds,
            moved=Got.OK,
            late=Got.LATE,
        )

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        if self._rate is None:
            return put_hinted(self.tier, keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
        return self._paced(
            [_nbytes(parts) for parts in values],
            lambda i, left: put_hinted(
                self.tier,
                keys[i : i + 1],
                values[i : i + 1],
                left,
                ttl_seconds=ttl_seconds,
                hints=None if hints is None else hints.part(keys, i, i + 1),
            ),
            timeout_seconds,
            moved=Put.STORED,
            late=Put.FAILED,
        )

    def _paced(
        self,
        sizes: Sequence[int],
        move: Callable[[int, float], bytes],
        timeout_seconds: float,
        *,
        moved: int,
        late: int,
    ) -> bytes:
        clock = self._clock
        deadline = clock.now() + timeout_seconds
        statuses = bytearray()
        for i, size in enumerate(sizes):
            arrival = self._reserve(size, deadline)
            if arrival is None:
                clock.sleep(deadline - clock.now())
                statuses.extend([late] * (len(sizes) - i))
                break
            status = move(i, max(0.0, deadline - clock.now()))
            statuses += status
            if status[0] == moved:
                clock.sleep(arrival - clock.now())
            else:
                self._give_back(size)
        return bytes(statuses)

    def _reserve(self, size: int, deadline: float) -> float | None:
        """When the value will have crossed, or None when that is past the deadline."""
        with self._lock:
            rate = self._rate
            now = self._clock.now()
            if rate is None:
                return now
            seconds = size / rate
            # A link that was busy until just now makes good what its last user overslept.
            start = self._free_at if now - self._free_at < seconds else now
            if start + seconds > deadline:
                return None
            self._free_at = start + seconds
            return self._free_at

    def _give_back(self, size: int) -> None:
        """Nothing crossed (absent, refused, failed): the reserved time goes to the next user."""
        with self._lock:
            if self._rate is not None:
                self._free_at -= size / self._rate


def _nbytes(parts: Vector) -> int:
    return sum(part.nbytes for part in parts)
