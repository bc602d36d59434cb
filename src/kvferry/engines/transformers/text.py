"""From generated ids to text, piece by piece: whole characters only, and nothing behind a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Writer"]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How a decoder shows a character of which only the first bytes are there."""

_LONGEST_CHARACTER = 8
"""Tokens after which a replacement character is taken as it is: no character needs so many."""


class Writer:
    """The text of one request.

    `decode` turns ids into text. Text that might be the beginning of a stop string is held back until it
    is known not to be.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._written = 0
        """Ids whose text has been taken."""
        self._context = 0
        """Ids from here on are decoded with the new ones: a token's text depends on the one before."""
        self._held = ""
        self.stopped = False

    def add(self, token_id: int) -> str:
        """Text that is certain now; "" while a character or a stop string may be unfinished."""
        if self.stopped:
            return ""
        self._ids.append(token_id)
        return self._release(self._take(flush=False))

    def flush(self) -> str:
        """What is still held back, when no more ids come."""
        if self.stopped:
            return ""
        released = self._release(self._take(flush=True))
        rest, self._held = self._held, ""
        return released if self.stopped else released + rest

    def _take(self, flush: bool) -> str:
        before = self._decode(self._ids[self._context : self._written])
        after = self._decode(self._ids[self._context :])
        waiting = len(self._ids) - self._written
        if after.endswith(_UNFINISHED) and not flush and waiting < _LONGEST_CHARACTER:
            return ""
        self._context, self._written = self._written, len(self._ids)
        return after[len(before) :]

    def _release(self, new: str) -> str:
        if not self._stops:
            return new
        text = self._held + new
        ends = [found for stop in self._stops if (found := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
