"""Replies as the types a command must give; anything else makes the server unusable for us.

Owns the errors for replies out of line. Refuses to know what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import TierUnavailable
from .connection import Reply, ServerError

__all__ = ["array_of", "info_of", "integer", "sound"]


def sound(reply: Reply) -> Reply:
    """The reply, unless it is an error."""
    if isinstance(reply, ServerError):
        raise TierUnavailable(f"the server refused: {reply}")
    return reply


def integer(reply: Reply) -> int:
    """An integer reply."""
    number = sound(reply)
    if not isinstance(number, int):
        raise TierUnavailable(f"expected an integer reply, got {reply!r:.80}")
    return number


def array_of(count: int, reply: Reply) -> list[Reply]:
    """An array reply of `count` elements."""
    elements = sound(reply)
    if not isinstance(elements, list) or len(elements) != count:
        raise TierUnavailable(f"expected an array of {count}, got {reply!r:.80}")
    return elements


def info_of(replies: Sequence[Reply]) -> dict[str, str]:
    """The fields of INFO sections."""
    text = b"\n".join(reply for reply in replies if isinstance(reply, bytes)).decode("utf-8", "replace")
    pairs = (line.strip().partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}
