"""Cloze: which word goes on, where the right one and the others all stand in the text before."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ..items import Item
from .library import Room, prose_of

__all__ = ["cloze_items"]

_CHOICES = 4
_LEAST_LETTERS = 5
_QUESTION_WORDS = 12


def cloze_items(documents: Sequence[tuple[str, str]], room: Room, limit: int, random: Random) -> list[Item]:
    """One item a module: its docstrings up to a word that they have held before."""
    found: list[Item] = []
    for name, text in documents:
        if len(found) == limit:
            break
        prose = prose_of(text)
        stop = room.cut(prose, room.context_tokens)
        if stop == len(prose):
            continue
        context = prose[:stop]
        item = _item(name, context, prose[stop:].split(), random)
        if item is not None:
            found.append(item)
    return found


def _item(name: str, context: str, following: list[str], random: Random) -> Item | None:
    before = {word for word in context.split() if len(word) >= _LEAST_LETTERS and word.isalpha()}
    for at, word in enumerate(following[: 2 * _QUESTION_WORDS]):
        others = sorted(before - {word} - set(following[:at]))
        if at >= 2 and word in before and word not in following[:at] and len(others) >= _CHOICES - 1:
            choices = random.sample([word, *random.sample(others, _CHOICES - 1)], _CHOICES)
            return Item(
                task="cloze",
                document=name,
                context=context,
                question=" " + " ".join(following[:at]),
                choices=tuple(f" {one}" for one in choices),
                answer=choices.index(word),
            )
    return None
