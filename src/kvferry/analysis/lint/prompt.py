"""A prompt as one text with its pieces: which characters are which message, tool or image.

Owns `Prompt`, `Piece` and how a place in a prompt is named. Knows nothing of logs, tokens or causes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = ["Kind", "Piece", "Prompt", "common_length"]

Kind: TypeAlias = Literal["message", "tool", "image", "call", "prompt"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of characters that came from one place of the request."""

    start: int
    end: int
    kind: Kind
    role: str = ""
    """Of the message that it belongs to; "" for tools and raw prompts."""
    index: int = -1
    """Of the message, or of the tool."""
    name: str = ""
    """Of the tool or the function that is called."""
    value: Any = None
    """A tool as it was parsed, or an image's address."""

    @property
    def place(self) -> str:
        """Such as `messages[0] (system)` or `tools[2] "get_weather"`."""
        if self.kind == "tool":
            return f"tools[{self.index}]" + (f' "{self.name}"' if self.name else "")
        if self.kind == "prompt":
            return "prompt"
        where = f"messages[{self.index}] ({self.role})"
        if self.kind == "image":
            return f"{where}, image"
        if self.kind == "call":
            return f"{where}, tool call"
        return where


@dataclass(slots=True)
class Prompt:
    """One request's prompt: `text` as the engine would see it, cut into `pieces` in order."""

    line: int
    """In its log, from 1."""
    text: str
    pieces: list[Piece]
    model: str = ""
    """Whatever makes two prompts share nothing by intent: model, adapter, salt. Not a cause."""
    setup: tuple[tuple[str, str], ...] = ()
    """(field, digest) of chat template and tokenizer, where the row names them."""
    service: str | None = None
    family: int | None = None
    ids: Any = None
    """(n,) int64, the text's tokens; None until an exact counting fills it."""
    head_end: int = field(init=False, default=0)
    """Character behind which the conversation's own turns begin: the end of the first user message."""
    _starts: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [piece.start for piece in self.pieces]
        self.head_end = len(self.text)
        first = next((one.index for one in self.pieces if one.role == "user"), None)
        if first is not None:
            self.head_end = max(
                one.end
                for one in self.pieces
                if one.kind == "tool" or one.index <= first or one.kind == "prompt"
            )

    @property
    def messages(self) -> list[Piece]:
        """The messages and calls, without tools."""
        return [piece for piece in self.pieces if piece.kind in ("message", "call")]

    @property
    def tools(self) -> list[Piece]:
        """The tools, in order."""
        return [piece for piece in self.pieces if piece.kind == "tool"]

    def piece_at(self, offset: int) -> Piece | None:
        """The piece that holds this character, or that ends at it; None inside the template's own text."""
        number = bisect_right(self._starts, offset) - 1
        # An image lies inside its message: the later start wins, and the message goes on behind it.
        while number >= 0:
            piece = self.pieces[number]
            if offset < piece.end or (offset == piece.end and piece.kind != "image"):
                return piece
            if piece.kind != "image":
                return None
            number -= 1
        return None

    def place_at(self, offset: int) -> str:
        """Where a character stands, in words."""
        piece = self.piece_at(offset)
        if piece is not None:
            return piece.place
        return "the chat template's own text"

    def line_at(self, offset: int) -> int:
        """Line of a character inside its piece, from 1; 0 outside of pieces and inside tools."""
        piece = self.piece_at(offset)
        if piece is None or piece.kind in ("tool", "image"):
            return 0
        return self.text.count("\n", piece.start, offset) + 1


def common_length(left: str, left_from: int, right: str, right_from: int) -> int:
    """Number of equal characters of two texts from two offsets on; compares slices, which runs at memcmp
    speed."""
    room = min(len(left) - left_from, len(right) - right_from)
    low, size = 0, 64
    while low < room:
        size = min(size, room - low)
        at, other = left_from + low, right_from + low
        if left[at : at + size] != right[other : other + size]:
            break
        low += size
        size *= 4
    else:
        return room
    # They agree up to `low` and differ before `high`.
    high = low + size
    while high - low > 1:
        middle = (low + high) // 2
        if left[left_from + low : left_from + middle] == right[right_from + low : right_from + middle]:
            low = middle
        else:
            high = middle
    return low
