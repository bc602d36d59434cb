"""Code completion: how likely a module's own next lines are behind those before them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ..items import Item
from .library import Room

__all__ = ["code_items"]

_CHARACTERS_PER_TOKEN = 12
"""More than a token has: what is cut off need not be encoded."""


def code_items(documents: Sequence[tuple[str, str]], room: Room, limit: int, random: Random) -> list[Item]:
    """One item a module: it begins at a definition somewhere in the first half."""
    found: list[Item] = []
    for name, text in documents:
        if len(found) == limit:
            break
        starts = [at + 1 for at in _ends(text, "\ndef ") + _ends(text, "\nclass ") if at < len(text) // 2]
        if not starts:
            continue
        tail = text[random.choice(sorted(starts)) :]
        wanted = room.context_tokens + room.continuation_tokens
        tail = tail[: wanted * _CHARACTERS_PER_TOKEN]
        stop = room.cut(tail, room.context_tokens)
        end = stop + room.cut(tail[stop:], room.continuation_tokens)
        if end < len(tail):
            found.append(Item(task="code", document=name, context=tail[:stop], continuation=tail[stop:end]))
    return found


def _ends(text: str, word: str) -> list[int]:
    found, at = [], text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + 1)
    return found
