"""What a change of prompts loses: a log made before it against a log made after.

Owns the comparison and its verdict. A service of the one log is compared with the same service of the other;
without services, a family with the family that is alike. Three figures, and which of them decides:

    lost      cached tokens per request, old minus new, each log by itself and its first request left out,
              for which nothing can be cached; in logs of one request each, what is apart now
    at risk   tokens per request behind a date or an identifier that the new prompt has in its head and the
              old has not: not lost in a log made in one go, but lost whenever it changes
    once      tokens that a new prompt no longer shares with the old ones: paid once, at deployment

`lost` and `at risk` are held against the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ...traces.chunk import Problems
from .counting import Counting
from .families import Families
from .jump import CAUSES
from .mending import where
from .prompt import Prompt
from .result import LintResult
from .run import Lint
from .volatile import holds_volatile
from .walk import walk

__all__ = ["BaselineResult", "ServiceChange", "compare"]


class ServiceChange(msgspec.Struct, frozen=True):
    """One service, before and after."""

    name: str
    old_requests: int
    new_requests: int
    old_cached_per_request: float
    new_cached_per_request: float
    lost_per_request: float
    at_risk_per_request: float
    once_per_request: float
    cause: str
    """What differs first between an old and a new prompt, or the finding that the old log did not have."""


class BaselineResult(msgspec.Struct, frozen=True):
    """The verdict over all services."""

    path: str
    lost_per_request: float
    """Of the service that loses most; negative where all gain."""
    fail_over: float | None
    failed: bool
    sentence: str
    services: list[ServiceChange]
    unmatched: list[str]
    """Services that only one of the logs has."""
    bad_rows: int = 0
    """Rows of the old log that could not be used."""


@dataclass(slots=True)
class _Side:
    """One service in one log."""

    first: Prompt
    requests: int = 0
    warm_cached: int = 0
    tokens: int = 0
    once: int = 0

    @property
    def per_request(self) -> float:
        return self.warm_cached / (self.requests - 1) if self.requests > 1 else 0.0


def compare(
    old: Iterable[Prompt],
    new: Iterable[Prompt],
    *,
    old_path: str,
    old_problems: Problems | None = None,
    fail_over: float | None = None,
    block_tokens: int = 16,
    counting: Counting | None = None,
    show_text: bool = False,
) -> tuple[BaselineResult, Lint]:
    """Both logs, and the running lint of the new one."""
    numbering = Families()

    def running() -> Lint:
        return Lint(block_tokens=block_tokens, counting=counting, families=numbering, show_text=show_text)

    before, after = running(), running()
    old_sides: dict[str, _Side] = {}
    for prompt in old:
        _book(old_sides, prompt, before.add(prompt), before)
    new_sides: dict[str, _Side] = {}
    for prompt in new:
        known = before.shared_blocks(prompt)
        side = _book(new_sides, prompt, after.add(prompt), after)
        side.once += known
    pairs, unmatched = _pairs(old_sides, new_sides)
    news = _new_findings(before.result(), after.result())
    changes = [_change(name, one, two, after, news) for name, one, two in pairs]
    changes.sort(key=lambda one: -max(one.lost_per_request, one.at_risk_per_request))
    sentence, failed = _verdict(changes, unmatched, fail_over)
    worst = max([one.lost_per_request for one in changes], default=0.0)
    bad = old_problems.count if old_problems else 0
    return BaselineResult(old_path, worst, fail_over, failed, sentence, changes, unmatched, bad), after


def _book(sides: dict[str, _Side], prompt: Prompt, cached: int, lint: Lint) -> _Side:
    name = prompt.service if prompt.service is not None else f"family {(prompt.family or 0) + 1}"
    side = sides.setdefault(name, _Side(prompt))
    if side.requests:
        side.warm_cached += cached
    side.requests += 1
    side.tokens += lint.block_tokens_before(prompt, len(prompt.text))
    return side


def _pairs(old: dict[str, _Side], new: dict[str, _Side]) -> tuple[list[tuple[str, _Side, _Side]], list[str]]:
    pairs = [(name, old[name], side) for name, side in new.items() if name in old]
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    if len(gone) == len(come) == 1:
        # The change was so large that nothing is alike any more, or the service was renamed.
        pairs.append((come[0], old[gone[0]], new[come[0]]))
        return pairs, []
    return pairs, [f"{name} (only in the old log)" for name in gone] + [
        f"{name} (only in the new log)" for name in come
    ]


def _change(name: str, old: _Side, new: _Side, after: Lint, news: dict[str, str]) -> ServiceChange:
    found = walk(old.first, new.first)
    once = max(0.0, (old.tokens / old.requests) - new.once / new.requests)
    old_cached, new_cached = old.per_request, new.per_request
    if old.requests == 1 or new.requests == 1:
        # Nothing repeats inside such a log: the old prompt stands for what is cached.
        old_cached, new_cached = old.tokens / old.requests, new.once / new.requests
    risk, risky = 0.0, ""
    for step in found.steps:
        if step.right_at >= new.first.head_end:
            break
        # The piece may begin before the character at which the texts part.
        begin, end = new.first.text.rfind("\n", 0, step.right_at) + 1, step.right_next
        kind = holds_volatile(new.first.text[begin:end])
        if kind is not None and holds_volatile(old.first.text[begin : step.left_next]) is None:
            risk = max(0.0, new_cached - after.block_tokens_before(new.first, begin))
            risky = f"{CAUSES[kind]} that is new at {where(step.place, step.line)}"
            break
    cause = risky or news.get(name, "")
    if not cause and found.steps:
        step = found.steps[0]
        cause = f"{CAUSES[step.cause]} at {where(step.place, step.line)}"
    elif not cause:
        place, line = new.first.place_at(found.right_end), new.first.line_at(found.right_end)
        cause = f"the prompts part at {where(place, line)}"
    return ServiceChange(
        name=name,
        old_requests=old.requests,
        new_requests=new.requests,
        old_cached_per_request=old_cached,
        new_cached_per_request=new_cached,
        lost_per_request=old_cached - new_cached,
        at_risk_per_request=risk,
        once_per_request=once,
        cause=cause,
    )


def _new_findings(old: LintResult, new: LintResult) -> dict[str, str]:
    """For each service or family the dearest finding that the old log did not have."""
    known = {(one.family, one.cause, one.place) for one in old.findings}
    found: dict[str, str] = {}
    for one in new.findings:
        if (one.family, one.cause, one.place) in known:
            continue
        text = f"{one.what} at {where(one.place, one.line_in_place)}"
        for name in [*one.services, one.family]:
            found.setdefault(name, text)
    return found


def _verdict(changes: list[ServiceChange], unmatched: list[str], fail_over: float | None) -> tuple[str, bool]:
    if not changes:
        return "Nothing to compare: no service of the new log is in the old one.", fail_over is not None
    worst = changes[0]
    limit = "" if fail_over is None else f"; the limit is {fail_over:,.0f}"
    if worst.lost_per_request >= max(worst.at_risk_per_request, 1.0):
        figures = f"{worst.old_cached_per_request:,.0f} before, {worst.new_cached_per_request:,.0f} now"
        sentence = (
            f"{worst.name} loses {worst.lost_per_request:,.0f} cached tokens per request ({figures}): "
            f"{worst.cause}{limit}."
        )
    elif worst.at_risk_per_request >= 1.0:
        sentence = (
            f"{worst.name} will lose {worst.at_risk_per_request:,.0f} cached tokens per request at every "
            f"change of this: {worst.cause}{limit}."
        )
    else:
        sentence = f"No service loses cached tokens{limit}."
    failed = fail_over is not None and max(worst.lost_per_request, worst.at_risk_per_request) > fail_over
    return sentence, failed
