"""Sums what walks found, per family, cause and place.

Owns which step of a walk costs what, and which findings a log's size supports. Memory is bounded by the
number of families times the findings kept of each.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .jump import CAUSES, Cause
from .mending import mend
from .prompt import Prompt
from .result import Example, FamilyResult, Finding
from .volatile import shape
from .walk import Step, Walk

__all__ = ["Family", "Gain", "gains"]

_MOST_FINDINGS = 64
_MOST_SERVICES = 256
_RECENT = 2
_MOST_VARIANTS = 256
_LONGEST_SHOWN = 80
_TAIL_TOKENS = 64
_LIKELY: frozenset[Cause] = frozenset({"early-text", "other", "counter", "tool-set"})
"""Causes that are ordinary in small numbers: two services that differ by right look like this too."""
_LIKELY_SHARE = 0.1
_FEW_VARIANTS = 3
_READABLE = 24
_FIRST_TURNS = "the first turns"
_SHAPES: dict[Cause, str] = {"date": "<date>", "id": "<id>", "counter": "<number>", "image": "<image>"}
"""Prompts part inside such a piece: its kind says more than the shape of its last characters."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What mending one step of a walk adds, its forerunners mended."""

    step: Step
    tokens: int
    behind: int
    """The same with all later steps mended too."""


def gains(
    found: Walk, prompt: Prompt, cached_to: int, tokens: Callable[[int], int], least_tokens: int
) -> list[Gain]:
    """The steps of a walk that stand between a prompt and tokens it could share.

    `cached_to` is the offset up to which some earlier prompt agrees anyway; `tokens` counts whole blocks'
    tokens before an offset. Steps at whose end too little is gained are dropped, with all behind them.
    """
    steps = found.steps
    first = next((at for at in range(len(steps)) if found.reach(at) > cached_to), len(steps))
    # Several causes may stand at one place.
    while 0 < first < len(steps) and steps[first - 1].right_at == steps[first].right_at:
        first -= 1
    kept = [(steps[at], tokens(found.reach(at))) for at in range(first, len(steps))]
    have = tokens(cached_to)
    # In the conversation's own turns a few equal tokens behind a number are chance.
    while kept:
        before = kept[-2][1] if len(kept) > 1 else have
        least = _TAIL_TOKENS if kept[-1][0].right_at >= _tail(prompt) else least_tokens
        if kept[-1][1] - max(before, have) >= least:
            break
        kept.pop()
    result = []
    last = kept[-1][1] if kept else have
    before = have
    for step, reach in kept:
        result.append(Gain(step, max(0, reach - before), max(0, last - before)))
        before = max(before, reach)
    return result


def _tail(prompt: Prompt) -> int:
    """Where the last message begins."""
    turns = prompt.messages
    return turns[-1].start if turns and turns[-1].role == "user" else prompt.head_end


@dataclass(slots=True)
class _Sum:
    cause: Cause
    place: str
    line: int
    detail: str
    example: Example
    requests: int = 0
    lost_tokens: int = 0
    blocked_tokens: int = 0
    apart_requests: int = 0
    apart_tokens: int = 0
    variants: set[int] = field(default_factory=set)
    services: Counter[str] = field(default_factory=Counter)
    losing: Counter[str] = field(default_factory=Counter)
    """Requests that lost, by service."""
    last_line: int = 0

    def note(self, prompt: Prompt) -> None:
        """Count a request's service, once however often it comes."""
        if prompt.service is not None and prompt.line != self.last_line:
            self.services[prompt.service] += 1
        self.last_line = prompt.line


@dataclass(slots=True)
class Family:
    """The running sums of one family."""

    number: int
    reference: int
    """Number of its first prompt in the index."""
    relatives: dict[str | None, list[int]] = field(default_factory=dict)
    """Numbers of the first and of the latest prompts of each service."""
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    first_cached_tokens: int = 0
    """Of its first request, which may share with another family."""
    services: Counter[str] = field(default_factory=Counter)
    _sums: dict[tuple[Cause, str], _Sum] = field(default_factory=dict)

    def relatives_of(self, service: str | None) -> list[int]:
        """The family's first prompt, and the first and the latest of a service."""
        return [self.reference, *self.relatives.get(service, ())]

    def keep(self, service: str | None, number: int) -> None:
        """Remember a prompt as a relative of those to come."""
        if service not in self.relatives and len(self.relatives) >= _MOST_SERVICES:
            return
        known = self.relatives.setdefault(service, [])
        known.append(number)
        if len(known) > 1 + _RECENT:
            del known[1]

    def count(self, prompt: Prompt, tokens: int, cached: int) -> None:
        """Book a request of the family."""
        if not self.requests:
            self.first_cached_tokens = cached
        self.requests += 1
        self.input_tokens += tokens
        self.cached_tokens += cached
        if prompt.service is not None:
            self.services[prompt.service] += 1

    def lose(self, left: Prompt, right: Prompt, found: Sequence[Gain], show_text: bool) -> None:
        """Book what a request lost against an earlier one."""
        for one, total in self._totals(left, right, found, show_text):
            total.requests += 1
            total.note(right)
            if right.service is not None:
                total.losing[right.service] += 1
            total.lost_tokens += one.tokens
            total.blocked_tokens += one.behind

    def part(self, left: Prompt, right: Prompt, found: Sequence[Gain], show_text: bool) -> None:
        """Book how a request differs from the family's first one."""
        for one, total in self._totals(left, right, found, show_text):
            total.apart_requests += 1
            total.apart_tokens += one.tokens
            total.note(right)

    def _totals(
        self, left: Prompt, right: Prompt, found: Sequence[Gain], show_text: bool
    ) -> list[tuple[Gain, _Sum]]:
        """Each gain with its sum, one gain a cause and place."""
        merged: dict[tuple[Cause, str], Gain] = {}
        for one in found:
            key = (one.step.cause, _spot(one.step))
            known = merged.get(key)
            merged[key] = one if known is None else Gain(known.step, known.tokens + one.tokens, known.behind)
        pairs = []
        for key, one in merged.items():
            total = self._sums.get(key)
            if total is None:
                if len(self._sums) >= _MOST_FINDINGS:
                    continue
                step = one.step
                example = Example(right.line, left.line, *_pieces(left, right, step, show_text))
                place = key[1] if key[1] == _FIRST_TURNS else step.place
                total = self._sums[key] = _Sum(step.cause, place, step.line, step.detail, example)
            piece = right.text[one.step.right_at : one.step.right_next]
            if len(total.variants) < _MOST_VARIANTS:
                total.variants.add(zlib.crc32(piece.encode("utf-8", "surrogatepass")))
            pairs.append((one, total))
        return pairs

    def findings(self, name: str) -> list[Finding]:
        """What the sums support, the dearest first."""
        found = []
        for total in self._sums.values():
            cause = total.cause
            if cause in _LIKELY:
                if not self._often(total):
                    continue
                if cause == "early-text" and len(total.variants) < _FEW_VARIANTS:
                    cause = "other"
            if not total.blocked_tokens and not total.apart_tokens:
                continue
            apart, apart_tokens, services = self._fewer(total)
            found.append(
                Finding(
                    cause=cause,
                    what=CAUSES[cause],
                    family=name,
                    place=total.place,
                    line_in_place=total.line,
                    detail=total.detail,
                    requests=total.requests,
                    lost_tokens=total.lost_tokens,
                    blocked_tokens=total.blocked_tokens,
                    apart_requests=apart,
                    apart_tokens=apart_tokens,
                    variants=len(total.variants),
                    services=dict(services.most_common()),
                    mend=mend(cause, total.place, total.line, total.detail),
                    example=total.example,
                )
            )
        return sorted(found, key=lambda one: (-one.blocked_tokens, -one.apart_tokens, one.place))

    def _fewer(self, total: _Sum) -> tuple[int, int, Counter[str]]:
        """Requests, tokens and services held apart; of two forms the rarer, whichever came first."""
        apart = total.apart_requests
        if len(total.variants) != 1 or 2 * apart <= self.requests:
            return apart, total.apart_tokens, total.services
        rest = self.requests - apart
        return rest, total.apart_tokens * rest // apart, self.services - total.services

    def _often(self, total: _Sum) -> bool:
        """Whether some service, or the family where rows name none, loses by it again and again."""
        counts = [(count, self.services[name]) for name, count in total.losing.items()]
        if not counts:
            counts = [(total.requests, self.requests)]
        return any(count >= max(2, _LIKELY_SHARE * of) for count, of in counts)

    def result(self, name: str, findings: Sequence[Finding]) -> FamilyResult:
        """The family's own figures."""
        warm = self.requests - 1
        per_request = (self.cached_tokens - self.first_cached_tokens) / warm if warm else 0.0
        return FamilyResult(
            name=name,
            requests=self.requests,
            services=dict(self.services.most_common()),
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            cached_per_request=per_request,
            lost_tokens=sum(one.lost_tokens for one in findings),
        )


def _spot(step: Step) -> str:
    """Under what a step is summed: tools move, and a cut of the conversation is at another turn each time."""
    if step.cause == "trimmed-history":
        return _FIRST_TURNS
    return "tools" if step.place.startswith("tools[") else step.place


def _pieces(left: Prompt, right: Prompt, step: Step, show_text: bool) -> tuple[str, str]:
    """What both have at a step: as shapes, or as they are."""
    if not show_text:
        shown = _SHAPES.get(step.cause)
        if shown is not None:
            return shown, shown
        return shape(left.text[step.left_at : step.left_next]), shape(
            right.text[step.right_at : step.right_next]
        )
    # The texts part inside a date or a word: from its beginning it can be read.
    back = 0
    while back < min(_READABLE, step.left_at, step.right_at) and left.text[step.left_at - back - 1] != "\n":
        back += 1
    return _cut(left.text[step.left_at - back : step.left_next]), _cut(
        right.text[step.right_at - back : step.right_next]
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
