"""Tokens of two tokenizers, aligned by the characters that they stand for.

Owns the rule by which a token of the target finds the token of the source whose KV it reads. Knows nothing of
tokenizers: what it needs of one are the spans of its tokens.

A target token reads the first source token that has seen everything up to the token's last character. Where a
character is cut into bytes, several tokens share its span: the j-th of n reads the source's token at the same
share of its own pieces. Tokens that stand for no character (a begin or end mark, or a blank that a tokenizer
trims) take the place that the text has reached before them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import ModelError

__all__ = ["Alignment", "Span", "align"]

Span = tuple[int, int]
"""[start, stop) in characters; start == stop where a token stands for none."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """For each target token the source token that it reads."""

    read: torch.Tensor
    """int64 [target tokens]; -1 where nothing of the source has come by then."""

    @property
    def reach(self) -> torch.Tensor:
        """Source tokens that a target token may look at: those up to the one it reads, [target tokens]."""
        return self.read + 1

    @property
    def grounded(self) -> torch.Tensor:
        """Where the source token read has something before it, bool [target tokens].

        The first token of a sequence attends to nothing but itself; its KV is a resting place of attention
        and says next to nothing about the text.
        """
        return self.read > 0

    def to(self, device: torch.device | str) -> Alignment:
        return Alignment(self.read.to(device))


def align(source: Sequence[Span], target: Sequence[Span]) -> Alignment:
    """The alignment of two lists of spans of one text.

    Raises ModelError where spans run backwards: they are then not those of one reading of the text.
    """
    ours, theirs = _places(source, "source"), _places(target, "target")
    stops = [stop for _, stop in ours]
    read = []
    for token, (start, stop) in enumerate(theirs):
        if start == stop:
            read.append(_of_none(ours, stops, theirs, token))
        else:
            read.append(_of_text(ours, stops, theirs, token))
    return Alignment(torch.tensor(read, dtype=torch.int64))


def _places(spans: Sequence[Span], side: str) -> list[Span]:
    """Spans with those of no character put where the text has got to; some tokenizers write (0, 0) there."""
    reached, found = 0, []
    for token, (start, stop) in enumerate(spans):
        if start >= stop:
            found.append((reached, reached))
            continue
        if start < 0 or stop < reached:
            raise ModelError(
                f"the {side}'s token {token} stands for characters {start} to {stop}, behind {reached}: "
                "its tokenizer does not give spans in the order of the text"
            )
        reached = stop
        found.append((start, stop))
    return found


def _of_text(ours: list[Span], stops: list[int], theirs: list[Span], token: int) -> int:
    start, stop = theirs[token]
    first = bisect_left(stops, stop)
    # A mark without characters that stands at this place ends there too; the text's own token is meant.
    while first < len(ours) and ours[first][0] == ours[first][1]:
        first += 1
    if first == len(ours):
        return _last_of_text(ours)
    pieces = _run(ours, first)
    among, count = _rank(theirs, token)
    if count == 1 or start < ours[first][0]:
        return first + pieces - 1
    return first + -(-(among + 1) * pieces // count) - 1


def _of_none(ours: list[Span], stops: list[int], theirs: list[Span], token: int) -> int:
    place = theirs[token][1]
    if place:
        return bisect_right(stops, place) - 1
    marks = bisect_right(stops, 0)
    among, _ = _rank(theirs, token)
    return min(among, marks - 1)


def _last_of_text(ours: list[Span]) -> int:
    return max((index for index, (start, stop) in enumerate(ours) if stop > start), default=len(ours) - 1)


def _run(spans: list[Span], first: int) -> int:
    """How many tokens from `first` on share its span."""
    count = 1
    while first + count < len(spans) and spans[first + count] == spans[first]:
        count += 1
    return count


def _rank(spans: list[Span], token: int) -> tuple[int, int]:
    """Which of the tokens of one span this is, and how many there are."""
    first = token
    while first and spans[first - 1] == spans[token]:
        first -= 1
    return token - first, _run(spans, first)
