"""What lint found in a log, as data.

Owns the form of a result. Nothing in it holds content of a prompt unless that was asked for: `before` and
`after` are shapes such as `<date>`.
"""

from __future__ import annotations

import msgspec

from .jump import Cause

__all__ = ["Example", "FamilyResult", "Finding", "LintResult"]


class Example(msgspec.Struct, frozen=True):
    """Two requests that part at a finding."""

    line: int
    """Of the later request in the log."""
    earlier_line: int
    before: str
    """What the earlier request has there, as a shape."""
    after: str


class Finding(msgspec.Struct, frozen=True):
    """One cause at one place of one family of prompts."""

    cause: Cause
    what: str
    """The cause in words."""
    family: str
    place: str
    """Such as `messages[0] (system)`, `tools[2] "get_weather"`."""
    line_in_place: int
    """From 1; 0 where lines say nothing."""
    detail: str
    """What differs by its structure: a JSON path, ways of writing, a number of messages."""
    requests: int
    """Requests that lost tokens by it."""
    lost_tokens: int
    """Tokens that these requests would have shared had the piece been the same (or behind what varies), in
    whole blocks, and with the findings before it in the same prompt mended."""
    blocked_tokens: int
    """`lost_tokens` and those of the findings behind it, which none but this one sets free."""
    apart_requests: int
    """Requests that have something else here than the family's first; of two forms, the rarer."""
    apart_tokens: int
    """Tokens of those behind it that a cache holds twice, or more often."""
    variants: int
    """Different pieces seen here, counted up to 256."""
    services: dict[str, int]
    """Requests that lose by it or are held apart, by service; empty where rows name none."""
    mend: str
    example: Example


class FamilyResult(msgspec.Struct, frozen=True):
    """Prompts that are meant to be alike."""

    name: str
    requests: int
    services: dict[str, int]
    input_tokens: int
    cached_tokens: int
    """Of whole blocks that an earlier request had, in a cache that never evicts."""
    cached_per_request: float
    """The same per request, the first of the family left out: it has nothing to share."""
    lost_tokens: int


class LintResult(msgspec.Struct, frozen=True):
    """Everything that lint says of a log."""

    path: str
    requests: int
    bad_rows: int
    problems: list[str]
    """The first bad rows, each with its line."""
    block_tokens: int
    counting: str
    """How tokens were counted, in words."""
    rendering: str
    """What was taken as the prompt's text, in words."""
    input_tokens: int
    cached_tokens: int
    lost_tokens: int
    families: list[FamilyResult]
    findings: list[Finding]
    """The dearest first."""
    recommendation: str
    """One sentence: what to do first."""
    notes: list[str]
