"""How long the engine's steps take, and how much of which prompt each computed, seen from below.

vLLM tells a tier when it has scheduled a step and which requests it scheduled for the first time, and later
hands over the chunks that a step computed, one batch a request. From both this makes `Pass`es, which teach
the prefill model. Where steps are scheduled ahead of time, the time between two schedulings is that of the
step before; which of the two holds is found from steps that stand alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...cacheside import Pass

__all__ = ["Pace"]

_SETTLE_STEPS = 6
"""Chunks of a step are handed over within so many steps; what comes later is not counted."""
_VOTES = 4


@dataclass(slots=True)
class _Step:
    began: float
    seconds: float | None = None
    prefills: list[tuple[str, int, int]] = field(default_factory=list)
    decodes: int = 0
    counts: bool = True
    """False where the engine may have waited for work meanwhile."""


@dataclass(slots=True)
class _Prefill:
    """A request in prefill: its batches come from this step on, one a step."""

    step: int
    computed_tokens: int


class Pace:
    """Steps of one engine. Bounded: a few steps, and the requests in prefill."""

    def __init__(self, passed: Callable[[Pass], None]) -> None:
        self._passed = passed
        self._steps: dict[int, _Step] = {}
        self._now = 0
        self._prefills: dict[str, _Prefill] = {}
        self._votes = 0

    @property
    def prefilling(self) -> int:
        """Requests that are being computed."""
        return len(self._prefills)

    def scheduled(self, now: float, fresh: dict[str, int], decodes: int) -> None:
        """A step has been scheduled. `fresh` has the tokens that its new requests hold already."""
        before = self._steps.get(self._now)
        if before is not None:
            before.seconds = max(0.0, now - before.began)
        self._now += 1
        self._steps[self._now] = _Step(now, decodes=0 if self._prefills or fresh else decodes)
        for rid, tokens in fresh.items():
            self._prefills[rid] = _Prefill(self._now, tokens)
        self._settle(self._now - _SETTLE_STEPS)

    def computed(self, rid: str, end_tokens: int) -> None:
        """Chunks of a prompt up to `end_tokens` have been handed over."""
        prefill = self._prefills.get(rid)
        if prefill is None or end_tokens <= prefill.computed_tokens:
            return
        step = self._steps.get(prefill.step)
        prefill.step += 1
        if step is not None:
            context = prefill.computed_tokens
            step.prefills.append((rid, end_tokens - context, context))
        prefill.computed_tokens = end_tokens

    def ready(self, rid: str) -> None:
        """A prompt is computed, or will not be."""
        self._prefills.pop(rid, None)

    def preempted(self, rid: str) -> None:
        """A request computes again later: its batches say nothing of any step."""
        self.ready(rid)

    def finished(self, rid: str, *, idle: bool) -> None:
        """A request is over; `idle` when it was the last, so that the engine may wait now."""
        self.ready(rid)
        self._settle(self._now - 2)
        if idle:
            for number in (self._now, self._now + 1):
                if number in self._steps:
                    self._steps[number].counts = False

    def _settle(self, until: int) -> None:
        """Pass on what steps up to `until` took."""
        for number in sorted(n for n in self._steps if n <= until):
            step, after = self._steps[number], self._steps.get(number + 1)
            if after is None or after.seconds is None or step.seconds is None:
                break
            ahead = self._ahead(step, after)
            timed = after if ahead else step
            if timed.counts and timed.seconds:
                if step.prefills:
                    self._passed(Pass(timed.seconds, step.prefills, 0))
                elif step.decodes and after.decodes:
                    self._passed(Pass(timed.seconds, (), step.decodes))
            del self._steps[number]

    def _ahead(self, step: _Step, after: _Step) -> bool:
        """Whether a step's time is that between the next two schedulings."""
        if step.prefills and not after.prefills and after.counts and step.seconds and after.seconds:
            self._votes += 1 if after.seconds > 2.0 * step.seconds else -1
            self._votes = max(-_VOTES, min(_VOTES, self._votes))
        return self._votes > 0
