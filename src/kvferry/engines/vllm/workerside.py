"""The worker's half of the connector: pages of this rank in and out of the tiers, on threads.

Owns what is in flight on this rank and when a request may be reported to the engine. Decides nothing: which
blocks move, and until when, stands in the orders. The engine's thread only hands over orders and collects
what has ended; it never waits for a tier.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ...cache.commands import Cancel, Completion, Legs, Load, LoadDone, Store, StoreDone
from ...clock import Clock
from ...config import Config
from ...executors.shelf import Shelf
from ...keys.pool import PoolKeys
from ...outcomes import Outcome
from ..assembly import thread_executor
from .audit import AuditMemory
from .mirror import HostChanges
from .orders import AuditDone, Orders, Report, Run, StoreTerms, WorkerDone
from .pages import Pages
from .pages_cuda import Marked
from .staged import LoadMemory, Staging, StoreMemory

__all__ = ["Results", "WorkerSide"]

log = logging.getLogger(__name__)


@dataclass
class Results:
    """What the engine is told after a step."""

    received: set[str] = field(default_factory=set)
    """Requests whose loads have all ended, well or not."""
    failed: set[str] = field(default_factory=set)
    """Those of them whose loads fell short, where the engine has several KV cache groups."""
    bad_blocks: set[int] = field(default_factory=set)
    """Blocks that were to be loaded and were not, where it has one."""


@dataclass
class _Operation:
    """A run on its way; one part per group that has blocks of it."""

    run: Run
    store: bool
    left: int
    memories: dict[int, LoadMemory] = field(default_factory=dict)
    done: list[Completion] = field(default_factory=list)
    answered: bool = False


class WorkerSide:
    """One rank. `rank` counts from 0 within the ranks that share a prompt's KV."""

    def __init__(
        self,
        *,
        config: Config,
        shelf: Shelf,
        secret: bytes,
        pages: Pages,
        clock: Clock,
        replica: str,
        rank: int,
        stores: bool,
        kv_dtype: str,
        changes: HostChanges | None,
        close_shelf: Callable[[], None],
    ) -> None:
        self._pages = pages
        self._secret = secret
        self._rank = rank
        self._stores = stores
        """Whether this rank publishes; another holds the same bytes where it does not."""
        self._kv_dtype = kv_dtype
        self._changes = changes
        self._clock = clock
        self._close_shelf = close_shelf
        self._link = shelf.link
        self._executor = thread_executor(
            config, shelf, self._deliver, clock=clock, replica=replica, aliens=None, codec=None
        )
        self._staging = Staging()
        self._on_host = pages.mark() is None
        self._keys: dict[bytes, PoolKeys] = {}
        self._lock = threading.Lock()
        self._operations: dict[int, _Operation] = {}
        self._waiting: dict[str, int] = {}
        """Loads of each request that have not ended."""
        self._last_part = 0
        self._parts: dict[int, tuple[int, int]] = {}
        """Part number to (operation, group): the executor sees parts."""
        self._ended: deque[WorkerDone] = deque()
        self._audits: dict[int, tuple[int, AuditMemory]] = {}
        """Part number to (operation, memory)."""
        self._results = Results()
        self._step = 0
        self._began = 0.0
        self._seconds = 0.0

    # -- on the engine's thread --------------------------------------------------------------------------

    def begin_step(self, orders: Orders) -> None:
        """Start what is ordered. Blocks of a load may be written to at once."""
        self._step, self._began = orders.step, self._clock.now()
        if self._link is not None and self._link.bytes_per_second != orders.pool_rate:
            self._link.bytes_per_second = orders.pool_rate
        mark = self._pages.mark()
        for op in orders.cancels:
            self._cancel(op)
        with self._lock:
            for run in orders.loads:
                self._waiting[run.rid] = self._waiting.get(run.rid, 0) + 1
        for rid, blocks in orders.refusals:
            with self._lock:
                self._results.received.add(rid)
                self._refuse(rid, blocks)
        for run in orders.loads:
            self._try(run.op, False, lambda run=run: self._load(run, mark), run)  # type: ignore[misc]
        for terms in orders.stores:
            self._try(terms.run.op, True, lambda terms=terms: self._store(terms, mark), terms.run)  # type: ignore[misc]

        for run in orders.audits:
            try:
                self._audit(run, mark)
            except Exception:
                log.exception("a block could not be compared")
                self._ended.append(AuditDone(run.op, self._rank, None))

    def end_pass(self) -> None:
        """The forward pass of this step has been made."""
        self._seconds = self._clock.now() - self._began

    def results(self) -> Results:
        """What has ended since the last call."""
        with self._lock:
            results, self._results = self._results, Results()
        return results

    def report(self) -> Report:
        """For the scheduler's side."""
        done: list[WorkerDone] = []
        while self._ended:
            done.append(self._ended.popleft())
        host = [self._changes.take()] if self._changes is not None else []
        return Report(self._step, self._seconds, done, host)

    def close(self) -> None:
        """Cancel what is in flight, and end."""
        self._executor.close()
        self._close_shelf()

    # -- orders --------------------------------------------------------------------------------------------

    def _try(self, op: int, store: bool, begin: Callable[[], None], run: Run) -> None:
        """Begin an operation; whatever goes wrong, it is answered, or the request would wait for ever."""
        try:
            begin()
        except Exception as error:
            log.exception("operation %d could not begin", op)
            why = f"{type(error).__name__}: {error}"
            with self._lock:
                operation = self._operations.setdefault(op, _Operation(run, store, 0))
            self._answer(op, operation, Outcome.FAILED, why)

    def _keys_of(self, run: Run, group: int) -> PoolKeys:
        digest = run.digests[self._rank][group]
        keys = self._keys.get(digest)
        if keys is None:
            keys = self._keys[digest] = PoolKeys(digest, self._secret)
        return keys

    def _begin(self, run: Run, store: bool) -> dict[int, tuple[int, list[int]]]:
        """Register the operation: for each group that has blocks of the run, its part's number, and which."""
        present = {
            group: [i for i, block in enumerate(ids) if block]
            for group, ids in enumerate(run.block_ids)
            if any(ids)
        }
        parts: dict[int, tuple[int, list[int]]] = {}
        with self._lock:
            self._operations[run.op] = _Operation(run, store, len(present))
            for group, at in present.items():
                self._last_part += 1
                self._parts[self._last_part] = (run.op, group)
                parts[group] = (self._last_part, at)
        if not parts:
            raise ValueError(f"{run.rid}: there is no block to move")
        return parts

    def _load(self, run: Run, mark: Marked | None) -> None:
        present = self._begin(run, store=False)
        operation = self._operations[run.op]
        commands = []
        for group, (part, at) in present.items():
            memory = LoadMemory(
                self._pages,
                group,
                [run.block_ids[group][i] for i in at],
                self._staging,
                each=self._on_host,
                after=mark,
            )
            operation.memories[group] = memory
            keys = self._keys_of(run, group).keys([run.hashes[i] for i in at])
            commands.append(
                Load(
                    part,
                    run.rid,
                    run.tier,
                    keys,
                    0,
                    len(keys),
                    memory,
                    run.timeout_seconds,
                    run.digests[self._rank][group],
                )
            )
        self._executor.submit(commands)

    def _store(self, terms: StoreTerms, mark: Marked | None) -> None:
        run = terms.run
        if not self._stores:
            with self._lock:
                self._operations[run.op] = _Operation(run, True, 0)
            self._answer(run.op, self._operations[run.op], None, "")
            return
        commands = []
        for group, (part, at) in self._begin(run, store=True).items():
            keys = self._keys_of(run, group).keys([run.hashes[i] for i in at])
            memory = StoreMemory(
                self._pages,
                group,
                [run.block_ids[group][i] for i in at],
                self._staging,
                after=mark,
            )
            commands.append(
                Store(
                    part,
                    run.rid,
                    keys,
                    0,
                    len(keys),
                    memory,
                    run.timeout_seconds,
                    terms.lease_seconds,
                    run.digests[self._rank][group],
                    ttl_seconds=terms.ttl_seconds,
                    keys_only=terms.keys_only,
                    worth_seconds=[terms.worth_seconds[i] for i in at] if terms.worth_seconds else (),
                    idle_seconds=terms.idle_seconds,
                    touched_only=terms.touched_only,
                )
            )
        self._executor.submit(commands)

    def _audit(self, run: Run, mark: Marked | None) -> None:
        """Compare one block of the first group; its others were computed by the same pass."""
        memory = AuditMemory(self._pages, 0, run.block_ids[0][0], self._staging, self._kv_dtype, after=mark)
        with self._lock:
            self._last_part += 1
            part = self._last_part
            self._audits[part] = (run.op, memory)
        keys = self._keys_of(run, 0).keys(run.hashes[:1])
        digest = run.digests[self._rank][0]
        self._executor.submit(
            [Load(part, run.rid, run.tier, keys, 0, 1, memory, run.timeout_seconds, digest)]
        )

    def _cancel(self, op: int) -> None:
        """Answer now: nothing reaches the pages any more, though a thread may still be reading."""
        operation = self._operations.get(op)
        if operation is None or operation.answered:
            return
        if not operation.store:
            for memory in operation.memories.values():
                memory.close()
            self._answer(op, operation, Outcome.LATE, "cancelled")
        parts = [part for part, (other, _) in list(self._parts.items()) if other == op]
        self._executor.submit([Cancel(part) for part in parts])

    # -- answers, on any thread ----------------------------------------------------------------------------

    def _deliver(self, done: Completion) -> None:
        part = getattr(done, "op", 0)
        with self._lock:
            audit = self._audits.pop(part, None)
        if audit is not None:
            self._ended.append(AuditDone(audit[0], self._rank, audit[1].error))
            return
        with self._lock:
            op, group = self._parts.pop(part, (0, 0))
            operation = self._operations.get(op)
        if operation is None:
            return
        cause = getattr(done, "cause", None)
        detail = getattr(done, "detail", "")
        memory = operation.memories.get(group)
        if memory is not None and isinstance(done, LoadDone):
            try:
                good = memory.settle()
            except Exception as error:
                log.exception("blocks could not be put into the engine's pages")
                good, cause = memory.close(), Outcome.FAILED
                detail = f"{type(error).__name__}: {error}"
            done = msgspec.structs.replace(done, good=min(good, done.good), cause=cause, detail=detail)
        with self._lock:
            operation.done.append(done)
            operation.left -= 1
            last = operation.left <= 0
        if last:
            self._answer(op, operation, None, "")

    def _answer(self, op: int, operation: _Operation, cause: Outcome | None, detail: str) -> None:
        """Tell the scheduler's side, once; and the engine, when it was the last load of its request."""
        with self._lock:
            self._operations.pop(op, None)
            if operation.answered:
                return
            operation.answered = True
            if operation.store:
                self._ended.append(_stored(op, operation, self._rank, cause))
                return
            answer = _loaded(op, operation, self._rank, cause, detail)
            self._ended.append(answer)
            run = operation.run
            if answer.good < len(run.hashes):
                self._refuse(run.rid, [i for i in run.block_ids[0][answer.good :] if i])
            left = self._waiting.get(run.rid, 1) - 1
            if left:
                self._waiting[run.rid] = left
            else:
                self._waiting.pop(run.rid, None)
                self._results.received.add(run.rid)

    def _refuse(self, rid: str, blocks: Sequence[int]) -> None:
        """Blocks of a request that hold nothing. With the lock held."""
        if len(self._pages.groups) == 1:
            self._results.bad_blocks.update(blocks)
        else:
            # Block numbers of different groups overlap, so that the engine wants the request's name.
            self._results.failed.add(rid)


def _loaded(op: int, operation: _Operation, rank: int, cause: Outcome | None, detail: str) -> LoadDone:
    """One rank's answer for all groups: the good prefix of the only one, or all or nothing of several."""
    wanted = len(operation.run.hashes)
    answers = [done for done in operation.done if isinstance(done, LoadDone)]
    short = next((done for done in answers if done.cause is not None), None)
    if short is not None and cause is None:
        cause, detail = short.cause, short.detail
    if len(operation.run.block_ids) == 1:
        placed = (memory.close() for memory in operation.memories.values())
        good = answers[0].good if answers else sum(placed)
    else:
        whole = cause is None and len(answers) == len(operation.memories)
        good = wanted if whole else 0
    if good < wanted and cause is None:
        cause, detail = Outcome.FAILED, "a load ended early"
    return LoadDone(op, good, cause if good < wanted else None, _slowest(answers), rank, detail)


def _stored(op: int, operation: _Operation, rank: int, cause: Outcome | None) -> StoreDone:
    answers = [done for done in operation.done if isinstance(done, StoreDone)]
    return StoreDone(
        op,
        min((done.stored for done in answers), default=0),
        sum(done.stored_bytes for done in answers),
        min((done.held for done in answers), default=0),
        cause or next((done.cause for done in answers if done.cause is not None), None),
        _slowest(answers),
        rank,
    )


def _slowest(answers: Sequence[LoadDone | StoreDone]) -> Legs:
    """Groups are moved side by side: their bytes add up, their seconds do not."""
    if not answers:
        return Legs()
    slowest = max((done.legs for done in answers), key=lambda legs: legs.wire_seconds)
    return msgspec.structs.replace(slowest, bytes=sum(done.legs.bytes for done in answers))
