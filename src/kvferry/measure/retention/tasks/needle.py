"""A needle in a haystack: one sentence with a number, somewhere in a text that has nothing to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ..items import Item
from .library import Room, prose_of

__all__ = ["needle_items"]

_COLOURS = ("amber", "crimson", "indigo", "olive", "scarlet", "teal", "violet", "white")
_THINGS = ("anchor", "barrel", "compass", "lantern", "rudder", "signal", "tiller", "winch")
_CHOICES = 4


def needle_items(documents: Sequence[tuple[str, str]], room: Room, limit: int, random: Random) -> list[Item]:
    """The hay is the docstrings of one module, the needle stands between two of its sentences.

    The other choices stand nowhere in it.
    """
    found: list[Item] = []
    for name, text in documents:
        if len(found) == limit:
            break
        numbers = random.sample(range(1000, 10000), _CHOICES)
        what = f"{random.choice(_COLOURS)} {random.choice(_THINGS)}"
        hay = prose_of(text)
        stop = room.cut(hay, room.context_tokens - 20)
        if stop == len(hay):
            continue
        words = hay[:stop].split(" ")
        ends = [at + 1 for at, word in enumerate(words[:-1]) if word.endswith(".")]
        if not ends:
            continue
        place = random.choice(ends)
        numbers = _absent(numbers, hay[:stop], random)
        needle = f"The number of the {what} is {numbers[0]}."
        context = " ".join([*words[:place], needle, *words[place:]]) + "\n"
        order = random.sample(range(_CHOICES), _CHOICES)
        found.append(
            Item(
                task="needle",
                document=name,
                context=context,
                question=f"The number of the {what} is",
                choices=tuple(f" {numbers[at]}" for at in order),
                answer=order.index(0),
            )
        )
    return found


def _absent(numbers: list[int], hay: str, random: Random) -> list[int]:
    """The same numbers, those that the hay holds replaced by others that it does not."""
    if not any(str(number) in hay for number in numbers):
        return numbers
    kept = [number for number in numbers if str(number) not in hay]
    others = [number for number in range(1000, 10000) if str(number) not in hay and number not in kept]
    return [*kept, *random.sample(others, len(numbers) - len(kept))]
