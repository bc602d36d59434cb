"""Key-value recall: a list of names and numbers, and one name asked for; every choice stands in the list."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ....errors import UsageError
from ..items import Item
from .library import Room

__all__ = ["recall_items"]

_SYLLABLES = ("ba", "do", "fe", "gi", "ku", "la", "me", "no", "pi", "ru", "sa", "te", "vo", "wi", "ze")
_CHOICES = 4
_TOKENS_PER_LINE = 12
"""About; a list that is too long is cut at the end of a line."""


def recall_items(documents: Sequence[tuple[str, str]], room: Room, limit: int, random: Random) -> list[Item]:
    """Lists are made up, each a document of its own; `documents` are not used.

    Raises `UsageError` where the room is too short for a list to choose from.
    """
    found = []
    for number in range(limit):
        size = max(_CHOICES, room.context_tokens // _TOKENS_PER_LINE)
        names: dict[str, int] = {}
        while len(names) < size:
            names["".join(random.sample(_SYLLABLES, 3))] = random.randrange(1000, 10000)
        lines = [f"{name}: {value}\n" for name, value in names.items()]
        context = "".join(lines)
        # The question's own "name:" follows, so the list must end with a whole line.
        context = context[: context.rfind("\n", 0, room.cut(context, room.context_tokens) + 1) + 1]
        held = [line.split(": ") for line in context.splitlines()]
        if len({value for _, value in held}) < _CHOICES:
            raise UsageError(
                f"--context-tokens {room.context_tokens}: too short for recall's list, which needs "
                f"{_CHOICES} whole lines; raise it, or leave the task out with --tasks"
            )
        asked, right = random.choice(held)
        others = random.sample(sorted({value for _, value in held} - {right}), _CHOICES - 1)
        choices = random.sample([right, *others], _CHOICES)
        found.append(
            Item(
                task="recall",
                document=f"recall {number}",
                context=context,
                question=f"{asked}:",
                choices=tuple(f" {value}" for value in choices),
                answer=choices.index(right),
            )
        )
    return found
