"""How fast this engine computes, and what its synchronous loads take, read off its own steps.

Owns the steps between the moment they are scheduled and the moment their output is there. A step with a
prefill and no load teaches the prefill model, a step of decodes alone teaches what loads take from others,
and a step with a synchronous load is as much longer than predicted as the load took. With asynchronous
scheduling the next step is scheduled before the last one is done, so a step begins at the later of the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from ....cache.estimates import Estimates

__all__ = ["Pace", "Row", "Step"]

# Far above any pipeline's depth; beyond it the engine has stopped reporting its steps.
_MOST_STEPS = 64
_LEAST_SECONDS = 1e-6


class Row(msgspec.Struct, frozen=True):
    """One request's share of a step's prefill."""

    rid: str
    tokens: int
    context: int


class Step(msgspec.Struct, frozen=True):
    """One step that has ended."""

    began: float
    seconds: float
    rows: tuple[Row, ...]
    decodes: int
    extra_seconds: float | None
    """What its synchronous loads took; None where it had none, or where nothing was known to compare with."""


class _Open(msgspec.Struct):
    began: float
    rows: tuple[Row, ...]
    decodes: int
    loads: bool


class Pace:
    """Folds steps into the estimates of one engine."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._open: deque[_Open] = deque()
        self._last_end = float("-inf")

    def began(self, now: float, rows: Sequence[Row], decodes: int, *, loads: bool) -> None:
        """A step was scheduled: prefill `rows`, so many decodes, and whether it loads before it computes."""
        if len(self._open) >= _MOST_STEPS:
            self._open.clear()
        self._open.append(_Open(now, tuple(rows), decodes, loads))

    def ended(self, now: float) -> Step | None:
        """The oldest step is done. None when none was open, or it computed nothing."""
        if not self._open:
            return None
        step = self._open.popleft()
        began = max(step.began, self._last_end)
        seconds, self._last_end = now - began, now
        if not step.rows and not step.decodes:
            return None
        extra = None
        if step.loads:
            extra = self._extra(step, seconds)
        elif step.rows:
            tokens, context = _as_one(step)
            self._estimates.prefill_step(tokens, context, seconds)
        else:
            self._estimates.decode_step(seconds / step.decodes)
        return Step(began, seconds, step.rows, step.decodes, extra)

    def _extra(self, step: _Open, seconds: float) -> float | None:
        prefill = self._estimates.prefill
        if not prefill.known:
            return None
        tokens, context = _as_one(step)
        predicted = prefill.seconds(tokens, context, tokens) * prefill.spread.quantile(0.5)
        return max(_LEAST_SECONDS, seconds - predicted)


def _as_one(step: _Open) -> tuple[int, int]:
    """(tokens, context) of one prefill that costs what the step's parts cost together.

    The attention term n (context + n / 2) adds up over the parts, so the context is chosen to give the sum;
    it comes out negative for many short prompts. A decode counts as one token, without its context.
    """
    tokens = sum(row.tokens for row in step.rows) + step.decodes
    pairs = sum(row.tokens * (row.context + row.tokens / 2) for row in step.rows)
    return tokens, round(pairs / tokens - tokens / 2) if tokens else 0
