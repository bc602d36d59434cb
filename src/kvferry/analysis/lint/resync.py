"""Detects shared text behind a piece that varies: finds where two texts meet again.

Owns the search: the earliest word of one text whose next characters stand in the other too, and that then
goes on alike for long enough. Only the head of a prompt is searched; what follows in a conversation differs
by right.
"""

from __future__ import annotations

import re

from .jump import Jump
from .prompt import Prompt, common_length

__all__ = ["LEAST_SHARED", "meet_again"]

LEAST_SHARED = 256
"""Characters (about 64 tokens) that must agree behind the piece for it to stand in the way of something."""
_ANCHOR = 32
_LONGEST = 1 << 17
_WORD = re.compile(r"(?<!\w)\w|[\u3040-\u9fff\uac00-\ud7af]|[{\[<]")


def meet_again(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """The two texts go on alike behind a piece of either. Says `early-text`; whether it is edited text
    instead (few variants) only the whole log can tell."""
    if left_at >= left.head_end or right_at >= right.head_end:
        return []
    found = _meeting(left.text, left_at, left.head_end, right.text, right_at, right.head_end)
    if found is None:
        return []
    return [Jump("early-text", *found)]


def _meeting(
    left: str, left_at: int, left_end: int, right: str, right_at: int, right_end: int
) -> tuple[int, int] | None:
    anchors: dict[str, int] = {}
    for match in _WORD.finditer(left, left_at, min(left_end, left_at + _LONGEST)):
        at = match.start()
        anchors.setdefault(left[at : at + _ANCHOR], at)
    for match in _WORD.finditer(right, right_at, min(right_end, right_at + _LONGEST)):
        at = match.start()
        other = anchors.get(right[at : at + _ANCHOR])
        if other is not None and common_length(left, other, right, at) >= LEAST_SHARED:
            # What agrees before the word belongs to the shared text too.
            while other > left_at and at > right_at and left[other - 1] == right[at - 1]:
                other, at = other - 1, at - 1
            return other, at
    return None
