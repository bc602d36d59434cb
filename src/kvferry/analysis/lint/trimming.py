"""Detects a conversation from which the oldest turns were taken."""

from __future__ import annotations

from .jump import Jump
from .prompt import Piece, Prompt

__all__ = ["meet_trimmed"]

_LEAST_SHARED = 64
"""Characters of turns that must come again behind the cut."""


def meet_trimmed(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Turns of `left` are missing in `right`, and those after them follow (behind a summary or at once)."""
    turns, others = _turns(left), _turns(right)
    number = _holding(others, right_at)
    own = _holding(turns, left_at)
    if number is None or own is None or others[number].role in ("system", "developer"):
        return []
    texts = [left.text[one.start : one.end] for one in turns]
    for summary in (0, 1):
        if number + summary >= len(others):
            break
        for cut in range(own + 1, len(turns)):
            shared = _same(texts, cut, right, others, number + summary)
            if shared >= _LEAST_SHARED:
                detail = f"{cut - own} messages gone" + (", one put in their place" if summary else "")
                start, other_start = turns[cut].start, others[number + summary].start
                return [Jump("trimmed-history", start, other_start, detail, others[number].place)]
    return []


def _turns(prompt: Prompt) -> list[Piece]:
    return [one for one in prompt.pieces if one.kind in ("message", "call")]


def _holding(turns: list[Piece], at: int) -> int | None:
    """Number of the turn that holds the offset; the next one if it lies between turns."""
    return next((number for number, one in enumerate(turns) if at < one.end), None)


def _same(texts: list[str], start: int, right: Prompt, others: list[Piece], other_start: int) -> int:
    """Characters of whole turns that agree from two turns on; 0 unless the first pair does."""
    shared = 0
    for text, other in zip(texts[start:], others[other_start:], strict=False):
        if right.text[other.start : other.end] != text:
            break
        shared += len(text)
    return shared
