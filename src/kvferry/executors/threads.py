"""Threads that carry out the cache's commands against real tiers.

Lookups, loads and stores have threads of their own, so that a publication never delays a load and a hung
load never delays a lookup. Loads write straight into the engine's memory; the fence is that an operation is
answered only after its last write, cancelled or not, and that the machine lends memory until the answer.
Long transfers are cut into batches of bounded size: between two of them a cancellation is noticed. What still
waits for a thread is answered the moment it is cancelled: a hung pool must not hold back what it never began.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..cache.commands import (
    Cancel,
    Command,
    Completion,
    Drop,
    Legs,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    StagedMemory,
    Status,
    Store,
    StoreDone,
)
from ..clock import Clock
from ..errors import ConfigError, StoreError, TierTimeout
from ..outcomes import Outcome
from ..store.codec import Codec
from ..store.framed import FramedTier
from ..store.tier import Found, Got, Tier
from .aliens import Aliens
from .batches import batches
from .marks import SHADOW, mark
from .publisher import Publisher
from .slots import LoadSlots

__all__ = ["ThreadExecutor"]

log = logging.getLogger(__name__)

_CANCELLED = "cancelled"
_CAUSES = {
    Got.ABSENT: Outcome.EVICTED,
    Got.CORRUPT: Outcome.CORRUPT,
    Got.ALIEN: Outcome.INCOMPATIBLE,
    Got.FAILED: Outcome.FAILED,
    Got.LATE: Outcome.LATE,
}
_FOUND = {
    Found.ABSENT: Status.ABSENT,
    Found.GHOST: Status.GHOST,
    Found.LEASED: Status.LEASED,
    Found.ALIEN: Status.ALIEN,
}


def _no_probe(command: Probe, why: str) -> ProbeDone:
    return ProbeDone(command.op, bytes([Status.FAILED]) * (command.stop - command.start), cause=why)


def _no_load(command: Load, why: str) -> LoadDone:
    return LoadDone(command.op, 0, Outcome.LATE if why == _CANCELLED else Outcome.FAILED, detail=why)


def _no_store(command: Store, why: str) -> StoreDone:
    log.info("a store failed: %s", why)
    return StoreDone(command.op, 0, cause=Outcome.LATE if why == _CANCELLED else Outcome.FAILED)


def _arrived(memory: StagedMemory, first: int, index: int) -> None:
    memory.arrived(first + index)


class ThreadExecutor:
    """Carries out commands; every operation is answered exactly once through `deliver`.

    `deliver` is called from any thread and must not block. `holder` names this replica in leases. With
    `codec` blocks travel encoded, and the bytes of an answer are those that moved.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        deliver: Callable[[Completion], None],
        *,
        clock: Clock,
        holder: bytes,
        load_threads: int = 4,
        store_threads: int = 2,
        pool_loads: int | None = None,
        publish_bytes: int = 1 << 30,
        slot_seconds: float = 60.0,
        aliens: Aliens | None = None,
        codec: Codec | None = None,
    ) -> None:
        if pool_loads is not None and pool_loads < 1:
            raise ConfigError(f"pool_loads must be at least 1, or left out for no cap, not {pool_loads}")
        self._tiers = list(tiers)
        self._deliver = deliver
        self._clock = clock
        self._slots = LoadSlots(pool_loads, holder, slot_seconds)
        self._publisher = Publisher(self._all_blocks, clock, holder=holder, most_bytes=publish_bytes)
        self._aliens = aliens
        self._codec = codec
        self._lookups = ThreadPoolExecutor(2, "kvferry-lookup")
        self._loads = ThreadPoolExecutor(load_threads, "kvferry-load")
        self._stores = ThreadPoolExecutor(store_threads, "kvferry-store")
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: dict[int, Callable[[str], Completion]] = {}
        """Operations that no thread has taken up yet, and how to answer for them."""
        self._running: set[int] = set()
        self._cancelled: set[int] = set()
        self._in_flight = [0] * len(self._tiers)
        self._framed: dict[tuple[int, bytes], FramedTier] = {}

    def _blocks(self, tier: int, namespace: bytes) -> FramedTier:
        """A tier as blocks of one namespace. A race only makes the same view twice."""
        framed = self._framed.get((tier, namespace))
        if framed is None:
            framed = FramedTier(self._tiers[tier], namespace, codec=self._codec)
            self._framed[tier, namespace] = framed
        return framed

    def _all_blocks(self, namespace: bytes) -> list[FramedTier]:
        return [self._blocks(tier, namespace) for tier in range(len(self._tiers))]

    def submit(self, commands: Sequence[Command]) -> None:
        """Start these commands; returns at once."""
        for command in commands:
            now = self._clock.now()
            if isinstance(command, Cancel):
                self._cancel(command.op)
            elif isinstance(command, Drop):
                if not self._closed:
                    self._lookups.submit(self._drop, command)
            elif isinstance(command, Probe):
                self._start(
                    self._lookups, command.op, partial(self._probe, command, now), partial(_no_probe, command)
                )
            elif isinstance(command, Load):
                self._start(
                    self._loads, command.op, partial(self._load, command, now), partial(_no_load, command)
                )
            else:
                stopped = partial(self._is_cancelled, command.op)
                store = partial(self._publisher.store, command, now, stopped)
                self._start(self._stores, command.op, store, partial(_no_store, command))

    def close(self) -> None:
        """Cancel what is in flight and let the threads end; does not wait for a hung one."""
        with self._lock:
            self._closed = True
            self._cancelled |= self._running
            waiting = list(self._waiting)
        for op in waiting:
            self._answer_for(op, "the executor is closed")
        for pool in (self._lookups, self._loads, self._stores):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the life of an operation ------------------------------------------------------------------------

    def _start(
        self,
        pool: ThreadPoolExecutor,
        op: int,
        work: Callable[[], Completion],
        failed: Callable[[str], Completion],
    ) -> None:
        with self._lock:
            self._waiting[op] = failed
        try:
            pool.submit(self._answer, op, work)
        except RuntimeError:  # shut down, by `close` or by an interpreter that ends
            self._answer_for(op, "the executor is closed")

    def _cancel(self, op: int) -> None:
        with self._lock:
            if op in self._running:
                self._cancelled.add(op)
        self._answer_for(op, _CANCELLED)

    def _answer_for(self, op: int, why: str) -> None:
        """Answer an operation that no thread has taken up; none will then."""
        with self._lock:
            failed = self._waiting.pop(op, None)
        if failed is not None:
            self._deliver(failed(why))

    def _answer(self, op: int, work: Callable[[], Completion]) -> None:
        """Run one operation; whatever happens, it is answered, or memory would stay lent for ever."""
        with self._lock:
            failed = self._waiting.pop(op, None)
            if failed is None:
                return
            self._running.add(op)
        try:
            done = work()
        except StoreError as error:
            done = failed(str(error))
        except Exception as error:
            log.exception("operation %d failed", op)
            done = failed(f"{type(error).__name__}: {error}")
        with self._lock:
            self._running.discard(op)
            self._cancelled.discard(op)
        self._deliver(done)

    def _is_cancelled(self, op: int) -> bool:
        with self._lock:
            return op in self._cancelled

    def _probe(self, command: Probe, submitted: float) -> ProbeDone:
        """Ask every tier, nearest first; a block counts for the nearest that holds it."""
        keys = command.keys[command.start : command.stop]
        until = submitted + command.timeout_seconds
        status = bytearray(len(keys))
        fields, cause = "", ""
        open_at: Sequence[int] = range(len(keys))
        for number, tier in enumerate(self._tiers):
            if not open_at:
                break
            wanted = keys if len(open_at) == len(keys) else [keys[i] for i in open_at]
            try:
                found = tier.find(wanted, self._left(until))
                if command.keys_only and found.count(Found.HELD) < len(found):
                    found = self._with_marks(tier, wanted, found, self._left(until))
            except StoreError as error:
                cause = f"{tier.name}: {error}"
                for i in open_at:
                    status[i] = Status.FAILED
                continue
            for i, byte in zip(open_at, found, strict=True):
                if byte == Found.HELD:
                    status[i] = Status.TIER + number
                elif status[i] != Status.FAILED and byte:
                    status[i] = _FOUND[Found(byte)]
            open_at = [i for i in open_at if status[i] < Status.TIER]
        if self._aliens is not None and command.hashes is not None and Status.ABSENT in status:
            hashes = command.hashes[command.start : command.stop]
            fields = self._mark_aliens(command.namespace, status, hashes, until)
        return ProbeDone(command.op, bytes(status), self._clock.now() - submitted, fields, cause=cause)

    def _left(self, until: float) -> float:
        """Seconds until then. A tier that is given no time would be taken for one that does not answer."""
        left = until - self._clock.now()
        if left <= 0.0:
            raise TierTimeout("no time was left to ask")
        return left

    def _mark_aliens(self, ours: bytes, status: bytearray, hashes: Sequence[bytes], until: float) -> str:
        """Mark absent blocks that the last tier holds under another namespace; the fields that differ."""
        aliens = self._aliens
        others = aliens.others(ours) if aliens is not None else []
        if aliens is None or not others:
            return ""
        absent = [i for i, byte in enumerate(status) if byte == Status.ABSENT]
        pool = self._tiers[-1]
        try:
            # One round trip for the first absent block in all of them: most misses end here.
            first = [hashes[absent[0]]]
            held = pool.find([aliens.keys(digest, first)[0] for digest, _ in others], self._left(until))
            for (digest, fields), byte in zip(others, held, strict=True):
                if byte == Found.HELD:
                    keys = aliens.keys(digest, [hashes[i] for i in absent])
                    for i, found in zip(absent, pool.find(keys, self._left(until)), strict=True):
                        if found == Found.HELD:
                            status[i] = Status.ALIEN
                    return fields
        except StoreError:
            log.debug("looking for blocks of other namespaces failed", exc_info=True)
        return ""

    @staticmethod
    def _with_marks(tier: Tier, keys: Sequence[bytes], found: bytes, left: float) -> bytes:
        marks = tier.find([mark(key, SHADOW) for key in keys], left)
        return bytes(Found.HELD if m == Found.HELD else f for f, m in zip(found, marks, strict=True))

    def _load(self, command: Load, submitted: float) -> LoadDone:
        started = self._clock.now()
        until = submitted + command.timeout_seconds
        tier = self._blocks(command.tier, command.namespace)
        if started >= until or self._is_cancelled(command.op):
            why = "deadline passed" if started >= until else _CANCELLED
            return LoadDone(command.op, 0, Outcome.LATE, Legs(started - submitted), detail=why)
        slot = self._slots.take(tier, partial(self._left, until))
        if slot == b"":
            return LoadDone(
                command.op, 0, Outcome.DECLINED, detail="the pool's cap on parallel loads is reached"
            )
        with self._lock:
            self._in_flight[command.tier] += 1
            shared = self._in_flight[command.tier]
        good, got_bytes, cause, detail = 0, 0, None, ""
        try:
            memory = command.dest
            block_bytes = memory.views(command.start, command.start + 1)[0].nbytes
            for at, stop in batches(command.start, command.stop, block_bytes):
                left = until - self._clock.now()
                if left <= 0.0 or self._is_cancelled(command.op):
                    cause, detail = Outcome.LATE, _CANCELLED if left > 0.0 else "deadline passed"
                    break
                views = memory.views(at, stop)
                arrived = partial(_arrived, memory, at) if isinstance(memory, StagedMemory) else None
                got = tier.get(command.keys[at:stop], views, left, arrived=arrived)
                whole = len(got) - len(got.lstrip(b"\x00"))
                good += whole
                got_bytes += sum(tier.payload_bytes(view) for view in views[:whole])
                if whole < len(got):
                    cause = _CAUSES[Got(got[whole])]
                    detail = f"{tier.name}: block {at + whole} {Got(got[whole]).name.lower()}"
                    break
        except StoreError as error:
            # What arrived before it is whole all the same.
            cause, detail = Outcome.FAILED, f"{tier.name}: {error}"
        finally:
            with self._lock:
                shared += self._in_flight[command.tier]
                self._in_flight[command.tier] -= 1
            if slot:
                self._slots.give(tier, slot)
        legs = Legs(started - submitted, self._clock.now() - started, 0.0, got_bytes, shared / 2)
        return LoadDone(command.op, good, cause, legs, detail=detail)

    def _drop(self, command: Drop) -> None:
        try:
            self._tiers[command.tier].drop(command.keys[command.start : command.stop], 1.0, ghost=False)
        except StoreError:
            log.debug("a bad block could not be dropped", exc_info=True)
        except Exception:
            log.exception("a bad block could not be dropped")
