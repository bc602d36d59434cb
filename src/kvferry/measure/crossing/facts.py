"""Small documents of made-up facts, with questions whose answers stand nowhere else.

Owns the generator: seeded, no download, people of training and of testing never the same. The values
(colours, animals, towns, trades) are the same on both sides, since a question is a choice among them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["FactDocument", "Question", "fact_documents"]

Side = Literal["train", "test"]

_VALUES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "yellow", "black", "white", "orange", "brown"),
    "animal": ("dog", "cat", "horse", "rabbit", "snake", "goat", "duck", "fox"),
    "town": ("Paris", "London", "Berlin", "Rome", "Tokyo", "Madrid", "Vienna", "Cairo"),
    "trade": ("doctor", "teacher", "farmer", "lawyer", "baker", "pilot", "singer", "nurse"),
}
_STATED = {
    "colour": "{name}'s favourite colour is {value}",
    "animal": "{name}'s favourite animal is the {value}",
    "town": "{name} lives in the city of {value}",
    "trade": "{name} works as a {value}",
}
_NAMES: dict[Side, str] = {
    "train": "Adam Alice Amy Andrew Ben Bella Carl Carol Chris Clara Dan Diana Ed Emma Eric Eva Frank Fiona "
    "Gary Grace Hank Helen Ian Iris Jack Jane Jim Julia Karl Kate Ken Laura Leo Lily Lucas Lucy Mark Mary",
    "test": "Nora Nick Olga Oscar Paul Paula Peter Rachel Ralph Rita Robert Rosa Sam Sarah Simon Sophie "
    "Steve Susan Tom Tina Victor Vera Walter Wendy",
}
_BETWEEN = (
    "The weather was mild and nobody was in a hurry.",
    "They met on a Sunday and drank tea together.",
    "Somebody played the piano in the next room.",
    "A train passed and the windows shook a little.",
    "After lunch they went for a walk along the river.",
    "The letter had been lying on the table since spring.",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence to be finished by one of the choices."""

    prompt: str
    choices: tuple[str, ...]
    """Each with the blank before it."""
    answer: int


@dataclass(frozen=True, slots=True)
class FactDocument:
    name: str
    text: str
    questions: tuple[Question, ...]
    restated: str
    """The facts once more, in another order: what training lets the receiver say."""


def fact_documents(
    count: int, *, seed: int, side: Side, people: int = 4, questions: int = 2, choices: int = 4
) -> list[FactDocument]:
    """`count` documents, each the same for the same seed and side whatever the count."""
    return [_document(index, seed, side, people, questions, choices) for index in range(count)]


def _document(index: int, seed: int, side: Side, people: int, asked: int, choices: int) -> FactDocument:
    draw = random.Random(f"{seed} {side} {index}")
    names = draw.sample(_NAMES[side].split(), people)
    facts = [
        (name, kind, draw.choice(_VALUES[kind])) for name in names for kind in draw.sample(sorted(_VALUES), 2)
    ]
    draw.shuffle(facts)
    lines = [_sentence(*fact) + "." for fact in facts]
    for sentence in draw.sample(_BETWEEN, 3):
        lines.insert(draw.randrange(len(lines) + 1), sentence)
    order = draw.sample(facts, len(facts))
    found = []
    for name, kind, value in order[:asked]:
        others = draw.sample([one for one in _VALUES[kind] if one != value], choices - 1)
        offered = [value, *others]
        draw.shuffle(offered)
        prompt = "\nAs we know from above, " + _sentence(name, kind, "").rstrip()
        found.append(Question(prompt, tuple(" " + one for one in offered), offered.index(value)))
    restated = "".join(f"\nAs we know from above, {_sentence(*fact)}." for fact in order)
    return FactDocument(f"facts-{side}-{seed}-{index}", " ".join(lines), tuple(found), restated)


def _sentence(name: str, kind: str, value: str) -> str:
    return _STATED[kind].format(name=name, value=value)
