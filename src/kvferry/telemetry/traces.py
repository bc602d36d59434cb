"""Requests as traces: one each, with its look-up, decision, loads and stores as children.

Owns the join of what a cache sends, hears and settles into spans with the times at which things really
happened: an operation begins when it is sent and takes what its answer says. Sees everything from outside,
so that the cache itself knows nothing of clocks on walls. Costs nothing where spans are off.

One thread at a time may call it; whoever owns the cache does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cache.account import Account
from ..cache.commands import (
    Command,
    Completion,
    Legs,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    Status,
    Store,
    StoreDone,
)
from ..store.tier import Kind
from .accounts import path_of
from .names import Choice, Span, SpanKey
from .spans import Attributes, OpenSpan, Spans

__all__ = ["RecordedTraces", "Traces"]


class Traces:
    """Follows nothing; the calls that every follower takes. `now` is on the cache's clock."""

    def arrived(self, rid: str, now: float, wall_seconds: float, prompt_tokens: int) -> None:
        """A request has arrived, at `wall_seconds` since the epoch."""

    def sent(self, now: float, commands: Sequence[Command]) -> None:
        """The cache has given these commands to its executor."""

    def answered(self, now: float, completion: Completion) -> None:
        """The executor has answered one of them."""

    def settled(self, now: float, account: Account, decided_at: float | None) -> None:
        """A request is over. `decided_at` is when the cache said what to do."""


@dataclass(slots=True)
class _Trace:
    root: OpenSpan
    offset: float
    """From the cache's clock to the wall, when the request arrived."""


class RecordedTraces(Traces):
    """Hands every request to `spans`. `tiers` are the cache's, nearest first."""

    def __init__(self, spans: Spans, tiers: Sequence[Kind]) -> None:
        self._spans = spans
        self._tiers = tiers
        self._traces: dict[str, _Trace] = {}
        self._sent: dict[int, tuple[_Trace, float, Probe | Load | Store]] = {}

    def arrived(self, rid: str, now: float, wall_seconds: float, prompt_tokens: int) -> None:
        attributes: Attributes = {SpanKey.REQUEST: rid, SpanKey.TOKENS: prompt_tokens}
        root = self._spans.begin(Span.REQUEST, wall_seconds, attributes)
        self._traces[rid] = _Trace(root, wall_seconds - now)

    def sent(self, now: float, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Probe | Load | Store) and command.rid in self._traces:
                # A store may be answered after its request is settled: it keeps the trace alive.
                self._sent[command.op] = (self._traces[command.rid], now, command)

    def answered(self, now: float, completion: Completion) -> None:
        if not isinstance(completion, ProbeDone | LoadDone | StoreDone):
            return
        sent = self._sent.pop(completion.op, None)
        if sent is None:
            return
        trace, began, command = sent
        if isinstance(completion, ProbeDone):
            span, seconds = Span.LOOKUP, completion.seconds
        else:
            span = Span.LOAD if isinstance(completion, LoadDone) else Span.STORE
            seconds = _seconds(completion.legs)
        attributes = self._attributes(command, completion)
        self._spans.record(span, began + trace.offset, seconds or now - began, attributes, parent=trace.root)

    def settled(self, now: float, account: Account, decided_at: float | None) -> None:
        trace = self._traces.pop(account.rid, None)
        if trace is None:
            return
        decision = account.decision
        if decision is not None and decided_at is not None:
            known = min(decided_at, account.arrived + account.lookup_seconds)
            attributes: Attributes = {
                SpanKey.CHOICE: (Choice.LOAD if decision.loads else Choice.RECOMPUTE).value,
                SpanKey.REASON: decision.reason.value,
                SpanKey.BYTES: decision.candidate_bytes,
            }
            self._spans.record(
                Span.GATE, known + trace.offset, decided_at - known, attributes, parent=trace.root
            )
        ended = now if account.ready_seconds is None else account.arrived + account.ready_seconds
        trace.root.end(ended + trace.offset, {SpanKey.PATH: path_of(account, self._tiers).value})

    def _attributes(
        self, command: Probe | Load | Store, done: ProbeDone | LoadDone | StoreDone
    ) -> dict[SpanKey, str | int | float]:
        attributes: dict[SpanKey, str | int | float] = {}
        if isinstance(done, ProbeDone):
            attributes[SpanKey.BLOCKS] = len(done.status)
            attributes[SpanKey.FOUND] = sum(byte >= Status.TIER for byte in done.status)
            return attributes
        if isinstance(command, Load):
            attributes[SpanKey.TIER] = self._tiers[command.tier].value
        attributes[SpanKey.BLOCKS] = command.stop - command.start
        attributes[SpanKey.BYTES] = done.legs.bytes
        if done.cause is not None:
            attributes[SpanKey.OUTCOME] = done.cause.value
        return attributes


def _seconds(legs: Legs) -> float:
    """How long the whole took; nought where it was answered without having begun."""
    return legs.queue_seconds + legs.wire_seconds + legs.install_seconds
