"""What the inner connector's loads take: begun when it is told to load, ended when the engine says so.

Owns the loads in flight, the slots for them, and the learning from them. The seconds of an asynchronous load
run from the engine's order to its report; a synchronous one took what its step took longer than predicted.
A load that failed, was abandoned, or belongs to a hand-off teaches nothing of the connector's speed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ....cache.account import LoadedRun
from ....cache.commands import Legs
from ....cache.estimates import Estimates
from ....cache.settings import CacheSettings
from ....gate.budget import LoadBudget
from ....gate.facts import Arm
from ....outcomes import Outcome
from ....store.tier import Kind
from .pace import Step
from .passing import Passing, Transfer
from .settings import HANDOFF_TIER, KINDS

__all__ = ["Transfers"]


class Transfers:
    """Loads of one inner connector."""

    def __init__(self, settings: CacheSettings, estimates: Estimates, kind: Kind) -> None:
        self.kind = kind
        """Where most of its last load came from; before the first, what it says of itself."""
        self.budget = LoadBudget(
            start=settings.new_replica_loads, most=settings.replica_loads, growth=settings.growth_per_load
        )
        self.last_end = float("-inf")
        self._settings = settings
        self._estimates = estimates
        self._loading: dict[str, Passing] = {}

    def __len__(self) -> int:
        return len(self._loading)

    # -- slots ------------------------------------------------------------------------------------------

    def take_slot(self, passing: Passing) -> None:
        """The gate has granted a load."""
        self.budget.take()
        passing.holds_slot = True

    def give_back_slot(self, passing: Passing, *, success: bool | None = None) -> None:
        """The load is over, or (None) will not begin. Nothing happens where no slot is held."""
        if passing.holds_slot:
            passing.holds_slot = False
            self.budget.give_back(success=success)

    # -- a load -----------------------------------------------------------------------------------------

    def begin(
        self,
        now: float,
        passing: Passing,
        tokens: int,
        *,
        asynchronous: bool,
        blocks: Sequence[int],
        sources: Mapping[Kind, int],
    ) -> None:
        """The connector was told to load `tokens` tokens behind the local ones."""
        first = not passing.admitted
        passing.transfer = Transfer(
            started=now,
            tokens=tokens,
            start_token=passing.books.local_tokens,
            bytes=tokens * self._settings.bytes_per_token,
            asynchronous=asynchronous,
            in_flight=len(self._loading) + 1,
            blocks=tuple(blocks),
            sources=sources,
            learns=not passing.hands_off,
            books=first,
        )
        if first:
            passing.external_tokens = tokens
        self._loading[passing.rid] = passing
        self._estimates.loads_in_flight[0] = len(self._loading)

    def heard(
        self, now: float, finished: Collection[str], failed: Collection[str], failed_blocks: Collection[int]
    ) -> None:
        """The workers' report: asynchronous loads that ended, and what of any load failed."""
        if failed_blocks:
            bad = frozenset(failed_blocks)
            for passing in self._loading.values():
                _mark(passing, bad)
        for rid in failed:
            if rid in self._loading:
                transfer = self._loading[rid].transfer
                if transfer is not None:
                    transfer.failed_at = transfer.start_token // self._settings.block_tokens
        for rid in finished:
            known = self._loading.get(rid)
            if known is not None and known.transfer is not None and known.transfer.asynchronous:
                self._end(now, known, known.transfer, now - known.transfer.started, now)

    def step_ended(self, now: float, loaded: Sequence[Passing], step: Step | None) -> frozenset[str]:
        """The step for which `loaded` were loaded synchronously is over; the requests whose load failed."""
        pairs = [(passing, passing.transfer) for passing in loaded if passing.transfer is not None]
        if not pairs:
            return frozenset()
        extra = None if step is None else step.extra_seconds
        if step is not None and extra is not None:
            # Everybody in the step waited for it.
            self._estimates.held(extra * step.decodes)
        total = sum(transfer.bytes for _, transfer in pairs)
        for passing, transfer in pairs:
            seconds = (extra or 0.0) * (transfer.bytes / total if total else 1.0)
            if extra is None:
                transfer.learns = False
            ready = now if step is None else step.began + seconds
            self._end(now, passing, transfer, seconds, ready)
        return frozenset(passing.rid for passing, transfer in pairs if transfer.failed_at is not None)

    def _end(self, now: float, passing: Passing, transfer: Transfer, seconds: float, ready: float) -> None:
        self._loading.pop(passing.rid, None)
        passing.transfer = None
        in_flight = (transfer.in_flight + len(self._loading) + 1) / 2 if transfer.asynchronous else 1.0
        failed = transfer.failed_at is not None
        legs = Legs(wire_seconds=seconds, bytes=transfer.bytes, in_flight=in_flight)
        if transfer.learns:
            cause = Outcome.FAILED if failed else None
            self._estimates.load_done(0, legs, wanted_bytes=transfer.bytes, cause=cause)
            self.last_end = now
        self._estimates.loads_in_flight[0] = len(self._loading)
        self.give_back_slot(passing, success=not failed)
        if transfer.sources and not passing.hands_off:
            self.kind = max(transfer.sources, key=lambda kind: transfer.sources[kind])
        if failed and passing.books.arm is Arm.ON:
            passing.vetoed = True
        if transfer.books:
            self._book(passing, transfer, legs, ready)

    def _book(self, passing: Passing, transfer: Transfer, legs: Legs, ready: float) -> None:
        """Runs of whole blocks, by the places that they came from."""
        books, size = passing.books, self._settings.block_tokens
        at = transfer.start_token
        start = at // size
        end = (at + transfer.tokens) // size
        good_end = end if transfer.failed_at is None else min(end, max(start, transfer.failed_at))
        for tier, tokens in self._tiers(passing, transfer):
            at += tokens
            stop = min(end, at // size)
            if stop <= start:
                continue
            good = min(stop, max(start, good_end)) - start
            share = (stop - start) * size / transfer.tokens
            cause = None if good == stop - start else Outcome.FAILED
            part = Legs(
                wire_seconds=legs.wire_seconds * share,
                bytes=round(legs.bytes * share),
                in_flight=legs.in_flight,
            )
            detail = "" if cause is None else "the connector reported a failed load"
            passing.runs.append(LoadedRun(tier, start, stop, good, part, cause, detail))
            start = stop
        books.usable_end = good_end
        if transfer.failed_at is not None:
            books.failure = (good_end, Outcome.FAILED)
        books.load_seconds = max(0.0, ready - (books.chosen_at or transfer.started))

    def _tiers(self, passing: Passing, transfer: Transfer) -> list[tuple[int, int]]:
        """(tier, tokens) in order; they sum to the load's tokens."""
        if passing.receives:
            return [(HANDOFF_TIER, transfer.tokens)]
        parts = sorted((KINDS.index(kind), count) for kind, count in transfer.sources.items() if count > 0)
        if sum(count for _, count in parts) != transfer.tokens:
            return [(KINDS.index(self.kind), transfer.tokens)]
        return parts


def _mark(passing: Passing, bad: frozenset[int]) -> None:
    transfer = passing.transfer
    if transfer is not None:
        at = next((index for index, block in enumerate(transfer.blocks) if block in bad), None)
        if at is not None:
            transfer.failed_at = at
