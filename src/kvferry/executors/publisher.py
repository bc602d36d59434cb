"""Carrying out a store: under leases, into every tier, in batches that a cancellation can end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ..cache.commands import Legs, Store, StoreDone
from ..clock import Clock
from ..errors import StoreError
from ..outcomes import Outcome
from ..store.framed import FramedTier
from ..store.hints import Hints
from ..store.tier import Kind, Put
from .batches import batches, runs
from .marks import SHADOW, TOUCH, mark

__all__ = ["Publisher"]

log = logging.getLogger(__name__)

_TOUCH_SECONDS = 86_400.0


class Publisher:
    """Publishes runs of blocks; at most `most_bytes` are under way at once, beyond that they are declined.

    `tiers(namespace)` gives the tiers as blocks of a namespace, nearest first.
    """

    def __init__(
        self,
        tiers: Callable[[bytes], Sequence[FramedTier]],
        clock: Clock,
        *,
        holder: bytes,
        most_bytes: int,
    ) -> None:
        self._tiers = tiers
        self._clock = clock
        self._holder = holder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._bytes = 0

    def store(self, command: Store, submitted: float, stopped: Callable[[], bool]) -> StoreDone:
        """Publish into every tier; the blocks of a run that another replica is publishing are left to it.

        The answer counts what the last tier took, the one that is shared. `stopped` says whether the
        operation was cancelled.
        """
        started = self._clock.now()
        until = submitted + command.timeout_seconds
        tiers = self._tiers(command.namespace)
        if command.keys_only:
            # A mark is a frame without a payload: whoever verifies the pool finds it sound.
            marks = [mark(key, SHADOW) for key in command.keys[command.start : command.stop]]
            nothing = [memoryview(b"")] * len(marks)
            tiers[-1].put(marks, nothing, until - started, ttl_seconds=command.ttl_seconds)
            return StoreDone(command.op, 0)
        block_bytes = command.source.views(command.start, command.start + 1)[0].nbytes
        total = block_bytes * (command.stop - command.start)
        with self._lock:
            if self._bytes and self._bytes + total > self._most_bytes:
                return StoreDone(command.op, 0, cause=Outcome.DECLINED)
            self._bytes += total
        done = StoreDone(command.op, 0)
        try:
            for tier in tiers:
                try:
                    done = _Run(self, tier, command, block_bytes, until, stopped).store()
                except StoreError as error:
                    # A near tier that fails must not keep blocks from the pool.
                    log.info("tier %s: a store failed: %s", tier.name, error)
                    done = StoreDone(command.op, 0, cause=Outcome.FAILED)
        finally:
            with self._lock:
                self._bytes -= total
        legs = Legs(started - submitted, self._clock.now() - started, 0.0, done.stored_bytes, 1.0)
        return StoreDone(command.op, done.stored, done.stored_bytes, done.held, done.cause, legs)

    def touched(self, tier: FramedTier, command: Store, blocks: Sequence[int], left: float) -> list[int]:
        """Those of `blocks` that some replica has asked for before."""
        # A touch is a lease that nobody gives back: the first request gets it, later ones do not.
        touches = [mark(command.keys[i], TOUCH) for i in blocks]
        ttl = command.ttl_seconds or _TOUCH_SECONDS
        first = tier.lease(touches, b"%s/%d" % (self._holder, command.op), ttl, left)
        return [i for i, new in zip(blocks, first, strict=True) if not new]

    def leased(self, tier: FramedTier, command: Store, blocks: Sequence[int], left: float) -> list[int]:
        """Those of `blocks` that no other replica is publishing; ours now."""
        mine = tier.lease([command.keys[i] for i in blocks], self._holder, command.lease_seconds, left)
        return [i for i, granted in zip(blocks, mine, strict=True) if granted]

    def release(self, tier: FramedTier, keys: Sequence[bytes]) -> None:
        """Give leases back; what cannot be given back expires by itself."""
        try:
            tier.release(keys, self._holder, 1.0)
        except StoreError:
            log.debug("leases could not be given back; they expire by themselves", exc_info=True)

    def now(self) -> float:
        """The clock's time."""
        return self._clock.now()


class _Run:
    """One run on its way into one tier."""

    def __init__(
        self,
        publisher: Publisher,
        tier: FramedTier,
        command: Store,
        block_bytes: int,
        until: float,
        stopped: Callable[[], bool],
    ) -> None:
        self._publisher, self._tier, self._command = publisher, tier, command
        self._block_bytes, self._until, self._stopped = block_bytes, until, stopped
        self._stored = self._held = self._bytes = 0

    def store(self) -> StoreDone:
        publisher, tier, command = self._publisher, self._tier, self._command
        wanted = list(range(command.start, command.stop))
        if command.touched_only:
            wanted = publisher.touched(tier, command, wanted, self._left())
        shared = tier.kind is Kind.POOL and bool(wanted)
        if shared:
            wanted = publisher.leased(tier, command, wanted, self._left())
        cause: Outcome | None = None
        try:
            for start, stop in runs(wanted):
                cause = self._store_run(start, stop)
                if cause is not None:
                    # Later blocks of the chain are of no use without these.
                    break
        finally:
            if shared and wanted:
                publisher.release(tier, [command.keys[i] for i in wanted])
        return StoreDone(command.op, self._stored, self._bytes, self._held, cause)

    def _store_run(self, start: int, stop: int) -> Outcome | None:
        """Why it ended early, if it did."""
        tier, command = self._tier, self._command
        for at, end in batches(start, stop, self._block_bytes):
            if self._left() <= 0.0 or self._stopped():
                return Outcome.LATE
            views = command.source.views(at, end)
            put = tier.put(
                command.keys[at:end],
                views,
                self._left(),
                ttl_seconds=command.ttl_seconds,
                hints=_hints(command, at, end),
            )
            self._stored += put.count(Put.STORED)
            self._held += put.count(Put.HELD)
            self._bytes += sum(
                tier.payload_bytes(view) for view, p in zip(views, put, strict=True) if p == Put.STORED
            )
            if Put.FULL in put or Put.FAILED in put:
                return Outcome.FAILED
        return None

    def _left(self) -> float:
        return self._until - self._publisher.now()


def _hints(command: Store, start: int, stop: int) -> Hints:
    """What is known of blocks `[start, stop)`: their worth, their life, what they continue."""
    first = command.start
    return Hints(
        worth_seconds=command.worth_seconds[start - first : stop - first] if command.worth_seconds else None,
        after=command.keys[start - 1] if start > 0 else None,
        idle_seconds=command.idle_seconds,
    )
