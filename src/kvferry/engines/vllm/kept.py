"""Blocks of the engine that are kept by references of ours while they are published or compared.

Owns the references, and which workers may still read behind each: it hears of every order that leaves and of
every answer. It outlives the scheduler's half. When that has failed, what nobody reads goes back to the
engine at once and the rest with the last answer; never before, or a worker would publish what the engine has
put into a block since. Knows nothing of what blocks hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ...cache.commands import StoreDone
from .orders import AuditDone, Orders, Report

__all__ = ["Kept", "Owner"]

Owner = tuple[Literal["store", "window", "audit"], str | int]
"""What the blocks are kept for: a request's publication, its windows, or a comparison by its number."""
_LINGER_SECONDS = 5.0
"""How long an engine without requests makes steps for answers that a failed half waits for."""


class Kept:
    """The references of one engine. On the scheduler's thread alone."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._pool: Any = None
        self._blocks: dict[Owner, list[Any]] = {}
        self._read: dict[tuple[str, int], tuple[Owner, set[int]]] = {}
        """Orders that have left, by kind and number: for whose blocks, and ranks that have not answered."""
        self._abandoned_at: float | None = None

    def bind(self, pool: Any) -> None:
        """The engine's block pool."""
        self._pool = pool

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def keep(self, owner: Owner, blocks: Sequence[Any]) -> None:
        """The engine does not reuse these until `owner` gives them back."""
        if blocks:
            self._pool.touch(blocks)
            self._blocks.setdefault(owner, []).extend(blocks)

    def give_back(self, owner: Owner) -> None:
        """All that is kept for it. Nothing happens where nothing is."""
        blocks = self._blocks.pop(owner, None)
        if blocks:
            # The engine takes the first again first, and the end of a prefix is worth least.
            self._pool.free_blocks(reversed(blocks))

    def keeps(self, kind: str) -> bool:
        """Whether anything is kept for owners of this kind."""
        return any(owner[0] == kind for owner in self._blocks)

    # -- what the workers are told, and answer -----------------------------------------------------------

    def sent(self, orders: Orders) -> None:
        """These leave for the workers: from now on they may read."""
        for terms in orders.stores:
            self._await("store", terms.run.op, ("store", terms.run.rid))
        for run in orders.audits:
            self._await("audit", run.op, ("audit", run.op))

    def heard(self, report: Report) -> None:
        """What workers have answered."""
        for done in report.done:
            if isinstance(done, StoreDone):
                self._answered("store", done.op, done.rank)
            elif isinstance(done, AuditDone):
                self._answered("audit", done.op, done.rank)

    # -- after a failure ---------------------------------------------------------------------------------

    def abandon(self, now: float) -> None:
        """Nobody will give back anything any more: do so here, as soon as no worker reads it."""
        self._abandoned_at = now
        read = {owner for owner, _ in self._read.values()}
        for owner in list(self._blocks):
            if owner not in read:
                self.give_back(owner)

    def publications(self) -> Iterable[int]:
        """Numbers of the publications that workers may still be at."""
        return [op for kind, op in self._read if kind == "store"]

    def waits(self, now: float) -> bool:
        """Whether answers bring back blocks that nobody else waits for, and are still worth steps."""
        if self._abandoned_at is None or not self._blocks:
            return False
        return now < self._abandoned_at + _LINGER_SECONDS

    def _await(self, kind: str, op: int, owner: Owner) -> None:
        self._read[kind, op] = (owner, set(range(self._ranks)))

    def _answered(self, kind: str, op: int, rank: int) -> None:
        owner, ranks = self._read.get((kind, op), (None, set[int]()))
        ranks.discard(rank)
        if owner is None or ranks:
            return
        del self._read[kind, op]
        if self._abandoned_at is not None and all(owner != other for other, _ in self._read.values()):
            self.give_back(owner)
