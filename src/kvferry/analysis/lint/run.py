"""Lints a log, one prompt at a time.

Owns the order of work: find the family, find the relatives, walk, sum. Opens no file; memory is bounded by
the index of prefixes and the families, not by the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import UsageError
from ...traces.chunk import Problems
from ...units import counted
from .counting import Counting, by_bytes
from .families import Families
from .mending import recommend
from .prefixes import Prefixes
from .prompt import Prompt, common_length
from .result import FamilyResult, Finding, LintResult
from .tally import Family, Gain, gains
from .walk import walk

__all__ = ["Lint", "lint"]

_NEUTRAL = "neutral: system messages, tools, then turns (give --chat-template for the engine's own form)"


class Lint:
    """The running state: `add` prompts, read `result`.

    `block_tokens` is the engine's block; tokens count as shared in whole blocks only. `families` may be
    shared by two runs, so that they number prompts alike.
    """

    def __init__(
        self,
        *,
        block_tokens: int = 16,
        counting: Counting | None = None,
        families: Families | None = None,
        prefixes: Prefixes | None = None,
        show_text: bool = False,
    ) -> None:
        if block_tokens < 1:
            raise UsageError(f"block_tokens is {block_tokens}; a block has at least one token")
        self._block_tokens = block_tokens
        self._counting = by_bytes() if counting is None else counting
        self._numbering = Families() if families is None else families
        self._prefixes = Prefixes() if prefixes is None else prefixes
        self._show_text = show_text
        self._families: dict[int, Family] = {}
        self.requests = self.input_tokens = self.cached_tokens = 0

    @property
    def prefixes(self) -> Prefixes:
        """What was seen so far."""
        return self._prefixes

    @property
    def families(self) -> dict[int, Family]:
        """The running sums, by number."""
        return self._families

    def add(self, prompt: Prompt) -> int:
        """Compare a prompt with those before it, and keep it. Its tokens that an earlier one had, in whole
        blocks."""
        shared, nearest = self._prefixes.longest(prompt)
        earlier = self._prefixes.get(nearest)
        cached = self._blocks(self._shared_tokens(earlier, prompt, shared))
        tokens = self._counting.before(prompt, len(prompt.text))
        self.requests += 1
        self.input_tokens += tokens
        self.cached_tokens += cached
        mates = self._prefixes.mates(prompt)
        number = self._prefixes.add(prompt)
        kind = prompt.family = self._numbering.of(prompt)
        if kind is None:
            return cached
        family = self._families.get(kind)
        if family is None:
            family = self._families[kind] = Family(kind, number)
        else:
            self._compare(family, prompt, shared, [*family.relatives_of(prompt.service), nearest, *mates])
        family.count(prompt, tokens, cached)
        family.keep(prompt.service, number)
        return cached

    def shared_blocks(self, prompt: Prompt) -> int:
        """Tokens in whole blocks that a prompt shares with any seen so far; does not keep it."""
        shared, nearest = self._prefixes.longest(prompt)
        return self._blocks(self._shared_tokens(self._prefixes.get(nearest), prompt, shared))

    def block_tokens_before(self, prompt: Prompt, offset: int) -> int:
        """Tokens of the whole blocks before a character."""
        return self._blocks(self._counting.before(prompt, offset))

    def _compare(self, family: Family, prompt: Prompt, shared: int, numbers: list[int | None]) -> None:
        def tokens(offset: int) -> int:
            return self._blocks(self._counting.before(prompt, offset))

        best: tuple[int, int, Prompt, list[Gain]] | None = None
        reference = family.reference
        for number in dict.fromkeys(numbers):
            relative = self._prefixes.get(number)
            if relative is None or relative is prompt or relative.family != prompt.family:
                continue
            found = walk(relative, prompt)
            if not found.steps:
                continue
            if number == reference:
                apart = gains(found, prompt, found.steps[0].right_at, tokens, self._block_tokens)
                family.part(relative, prompt, apart, self._show_text)
            kept = gains(found, prompt, shared, tokens, self._block_tokens)
            total = sum(one.tokens for one in kept)
            if kept and (best is None or (total, -len(kept)) > best[:2]):
                best = (total, -len(kept), relative, kept)
        if best is not None:
            family.lose(best[2], prompt, best[3], self._show_text)

    def _shared_tokens(self, earlier: Prompt | None, prompt: Prompt, shared: int) -> int:
        tokens = self._counting.before(prompt, shared)
        if earlier is not None and common_length(earlier.text, 0, prompt.text, 0) == shared:
            # A token that ends here in one prompt may go on in the other.
            tokens = min(tokens, self._counting.before(earlier, shared))
        return tokens

    def _blocks(self, tokens: int) -> int:
        return tokens - tokens % self._block_tokens

    def result(
        self, *, path: str = "", problems: Problems | None = None, rendering: str = _NEUTRAL
    ) -> LintResult:
        """What was found so far."""
        families: list[FamilyResult] = []
        findings: list[Finding] = []
        for family in self._families.values():
            name = name_of(family)
            found = family.findings(name)
            findings += found
            families.append(family.result(name, found))
        findings.sort(key=lambda one: (-one.blocked_tokens, -one.apart_tokens))
        bad = problems.count if problems else 0
        notes = []
        if self._prefixes.forgotten:
            notes.append(
                "the log has more different text than is kept: the oldest was forgotten, hits may be too low"
            )
        if bad:
            share = 100 * bad / (bad + self.requests)
            notes.append(f"{counted(bad, 'row')} ({share:.1f} %) could not be used and not counted")
        return LintResult(
            path=path,
            requests=self.requests,
            bad_rows=bad,
            problems=[str(one) for one in problems.first] if problems else [],
            block_tokens=self._block_tokens,
            counting=self._counting.described,
            rendering=rendering,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            lost_tokens=sum(one.lost_tokens for one in findings),
            families=sorted(families, key=lambda one: -one.requests),
            findings=findings,
            recommendation=self._recommendation(findings),
            notes=notes,
        )

    def _recommendation(self, findings: list[Finding]) -> str:
        if not self.requests:
            return "Nothing to say: the log has no usable row."
        if not findings:
            return "Nothing to mend: prompts that look alike do match."
        first = findings[0]
        if not first.blocked_tokens:
            hold = "holds" if first.apart_requests == 1 else "hold"
            return (
                f"{first.mend} {counted(first.apart_requests, 'request')} {hold} "
                f"{counted(first.apart_tokens, 'token')} apart from the others by it."
            )
        return recommend(
            first.mend, first.lost_tokens, first.blocked_tokens, first.requests, self.input_tokens
        )


def name_of(family: Family) -> str:
    """A family by its services, or by its number."""
    if family.services:
        names = [name for name, _ in family.services.most_common(3)]
        more = len(family.services) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")
    return f"family {family.number + 1}"


def lint(
    prompts: Iterable[Prompt],
    *,
    block_tokens: int = 16,
    counting: Counting | None = None,
    show_text: bool = False,
    path: str = "",
    problems: Problems | None = None,
) -> LintResult:
    """Why prompts that look alike do not match, for a whole log."""
    running = Lint(block_tokens=block_tokens, counting=counting, show_text=show_text)
    for prompt in prompts:
        running.add(prompt)
    return running.result(path=path, problems=problems)
