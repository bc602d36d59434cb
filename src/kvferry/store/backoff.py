"""A tier that is left alone for a while after it failed.

Owns the interval between attempts: it grows with every failure, with jitter so that replicas do not return
together, and one probe is let through at its end. Refuses to know why the tier failed.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

from ..clock import Clock
from ..errors import ConfigError, TierTimeout, TierUnavailable
from .arrival import Arrived, get_telling
from .hints import Hints, put_hinted
from .tier import Entry, Got, Put, Tier, Usage, Vector
from .wrapper import Wrapper

__all__ = ["BackedOff", "State"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_PASSED_OVER = bytes([Got.FAILED])


class State(StrEnum):
    """Whether calls reach the tier."""

    UP = "up"
    RESTING = "resting"
    """Calls are refused at once until the interval is over."""
    PROBING = "probing"
    """One call is under way to see whether the tier is back; the others are refused."""


class BackedOff(Wrapper):
    """Refuses calls at once while `tier` rests after a failure.

    A failure is a call that raised `TierUnavailable` or `TierTimeout`, a read in which a block FAILED, or
    a read in which not one block arrived before the deadline. While the tier rests, `get` answers FAILED
    and everything else raises `TierUnavailable`. `first_seconds` doubles up to `longest_seconds`; each
    interval is spread by `jitter` (0.25 is +-25 %) with a generator seeded by `seed`.
    """

    def __init__(
        self,
        tier: Tier,
        clock: Clock,
        *,
        first_seconds: float = 0.5,
        longest_seconds: float = 30.0,
        jitter: float = 0.25,
        seed: int = 0,
        on_change: Callable[[State], None] | None = None,
    ) -> None:
        if not 0 < first_seconds <= longest_seconds:
            raise ConfigError(
                f"back-off needs 0 < first <= longest, not {first_seconds} s and {longest_seconds} s"
            )
        if not 0 <= jitter < 1:
            raise ConfigError(f"the jitter of a back-off lies in [0, 1), not {jitter}")
        super().__init__(tier)
        self._clock = clock
        self._first = first_seconds
        self._longest = longest_seconds
        self._jitter = jitter
        self._random = random.Random(seed)
        self._on_change = on_change
        self._lock = threading.Lock()
        self._state = State.UP
        self._failures = 0
        self._until = 0.0

    @property
    def state(self) -> State:
        """Whether the next call would reach the tier, or why not."""
        return self._state

    @property
    def resting_seconds(self) -> float:
        """Seconds until the next probe; 0 when calls pass."""
        return max(0.0, self._until - self._clock.now()) if self._state is State.RESTING else 0.0

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        if not keys:
            return b""
        if not self._admit():
            return _PASSED_OVER * len(keys)
        try:
            statuses = get_telling(self.tier, keys, into, timeout_seconds, arrived)
        except BaseException:
            self._after(failed=True)
            raise
        hung = Got.LATE in statuses and Got.OK not in statuses
        self._after(failed=Got.FAILED in statuses or hung)
        return statuses

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        return self._call(lambda: self.tier.find(keys, timeout_seconds))

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        return self._call(
            lambda: put_hinted(
                self.tier, keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints
            ),
            lambda statuses: bool(statuses) and statuses == bytes([Put.FAILED]) * len(statuses),
        )

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        return self._call(lambda: self.tier.drop(keys, timeout_seconds, ghost=ghost))

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        return self._call(lambda: self.tier.lease(names, holder, ttl_seconds, timeout_seconds))

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        self._call(lambda: self.tier.release(names, holder, timeout_seconds))

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        return self._call(lambda: self.tier.read_note(name, timeout_seconds))

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        return self._call(lambda: self.tier.write_note(name, value, timeout_seconds, if_absent=if_absent))

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        return self._call(lambda: self.tier.notes(prefix, timeout_seconds))

    def usage(self, timeout_seconds: float) -> Usage:
        return self._call(lambda: self.tier.usage(timeout_seconds))

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        return self.tier.scan(timeout_seconds)

    def _call(self, call: Callable[[], T], failed: Callable[[T], bool] | None = None) -> T:
        if not self._admit():
            raise TierUnavailable(
                f"tier {self.name} failed {self._failures} times and is left alone "
                f"for {self.resting_seconds:.2f} s more"
            )
        try:
            answer = call()
        except (TierUnavailable, TierTimeout):
            self._after(failed=True)
            raise
        except BaseException:
            # Not the tier's fault (a bad argument, say), but a probe must never stay under way.
            self._after(failed=self._state is State.PROBING)
            raise
        self._after(failed=failed is not None and failed(answer))
        return answer

    def _admit(self) -> bool:
        with self._lock:
            if self._state is State.UP:
                return True
            if self._state is State.PROBING or self._clock.now() < self._until:
                return False
            self._state = State.PROBING
        self._tell(State.PROBING)
        return True

    def _after(self, *, failed: bool) -> None:
        with self._lock:
            before = self._state
            if failed:
                # Calls already under way when the tier went down count as one failure, not as many.
                if before is State.RESTING:
                    return
                self._failures += 1
                interval = min(self._longest, self._first * 2.0 ** min(self._failures - 1, 60))
                interval *= 1 + self._jitter * (2 * self._random.random() - 1)
                self._until = self._clock.now() + interval
                self._state = State.RESTING
            elif before is State.PROBING:
                self._failures = 0
                self._state = State.UP
            after = self._state
        if after is not before:
            self._tell(after)

    def _tell(self, state: State) -> None:
        if state is not State.PROBING:
            log.warning("tier %s is %s", self.name, state.value)
        if self._on_change is not None:
            self._on_change(state)
