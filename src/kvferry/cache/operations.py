"""Commands that were emitted and not yet answered by every rank: their numbers, timers and answers so far.

Owns the life of an operation: emitted, answered rank by rank, cancelled when overdue, forgotten when an
executor never answers. Refuses to know what an answer means for a request: the machine does.
"""

from __future__ import annotations

import msgspec

from ..outcomes import Outcome
from .commands import Cancel, Command, Legs, Load, LoadDone, Probe, ProbeDone, Status, Store, StoreDone
from .requests import Request

__all__ = ["Operation", "Operations"]


class Operation(msgspec.Struct, eq=False):
    """One emitted command that has not been answered by every rank."""

    command: Probe | Load | Store
    request: Request
    ranks_left: int
    staged_left: int
    started: float
    until: float
    """When the machine stops waiting for it; never moved later."""
    cancelled: bool = False
    abandon_at: float = float("inf")
    status: bytes = b""
    good: int | None = None
    """Leading blocks that are whole on every rank that has answered."""
    cause: Outcome | None = None
    detail: str = ""
    legs: Legs = Legs()

    def probed(self, done: ProbeDone) -> None:
        """Fold one rank's answer: present means present on every rank, in the same tier."""
        self.ranks_left -= 1
        if not self.status or self.status == done.status:
            self.status = done.status
            return
        # Where ranks differ the lower status is the reason; two tiers that both hold it hold half each.
        self.status = bytes(
            a if a == b else min(a, b) if min(a, b) < Status.TIER else Status.ABSENT
            for a, b in zip(self.status, done.status, strict=True)
        )

    def loaded(self, done: LoadDone) -> None:
        """Fold one rank's answer: the shortest good prefix counts, and the slowest rank's time."""
        self.ranks_left -= 1
        if self.good is None or done.good < self.good:
            self.good, self.cause, self.detail = done.good, done.cause, done.detail
        self._add(done.legs)

    def stored(self, done: StoreDone) -> None:
        """Fold one rank's answer."""
        self.ranks_left -= 1
        self.cause = self.cause or done.cause
        self._add(done.legs)

    def _add(self, legs: Legs) -> None:
        """Ranks work side by side: their bytes add up, their seconds do not."""
        moved = self.legs.bytes + legs.bytes
        slowest = legs if legs.wire_seconds >= self.legs.wire_seconds else self.legs
        self.legs = slowest if slowest.bytes == moved else msgspec.structs.replace(slowest, bytes=moved)


class Operations:
    """What is in flight, and the commands that wait to be taken by an executor."""

    def __init__(self, *, ranks: int, grace_seconds: float, abandon_seconds: float) -> None:
        self._ranks = ranks
        self._grace = grace_seconds
        self._abandon = abandon_seconds
        self._running: dict[int, Operation] = {}
        self._commands: list[Command] = []
        self._last_op = 0
        self.due_at = float("inf")
        """No operation is overdue before; it may be earlier than the first that is."""

    def next_op(self) -> int:
        """A number that no operation has had."""
        self._last_op += 1
        return self._last_op

    def emit(self, now: float, command: Probe | Load | Store, request: Request) -> None:
        """Send a command; every rank has its timeout and a grace to answer."""
        until = now + command.timeout_seconds + self._grace
        self._running[command.op] = Operation(command, request, self._ranks, self._ranks, now, until)
        self._commands.append(command)
        self.due_at = min(self.due_at, until)

    def tell(self, command: Command) -> None:
        """Send a command that is not answered."""
        self._commands.append(command)

    def cancel(self, now: float, op: int) -> None:
        """Ask for the answer now. It is still waited for, but not for ever."""
        operation = self._running[op]
        if not operation.cancelled:
            operation.cancelled = True
            operation.abandon_at = now + self._abandon
            self._commands.append(Cancel(op))
            self.due_at = min(self.due_at, operation.abandon_at)

    def get(self, op: int) -> Operation | None:
        """None when it is long forgotten."""
        return self._running.get(op)

    def forget(self, op: int) -> None:
        """It is answered, or given up."""
        del self._running[op]

    def overdue(self, now: float) -> list[tuple[int, Operation]]:
        """Operations whose time is over: not answered at all, or not even cancelled."""
        if now < self.due_at:
            return []
        return [(op, o) for op, o in self._running.items() if now >= self._due(o)]

    def reckon(self) -> None:
        """Find `due_at` anew, after overdue operations have been dealt with."""
        self.due_at = self.next_deadline()

    def next_deadline(self) -> float:
        """When the next operation is overdue; infinite without any."""
        return min(map(self._due, self._running.values()), default=float("inf"))

    def take(self) -> list[Command]:
        """The commands sent since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def __len__(self) -> int:
        return len(self._running)

    @staticmethod
    def _due(operation: Operation) -> float:
        return operation.abandon_at if operation.cancelled else operation.until
