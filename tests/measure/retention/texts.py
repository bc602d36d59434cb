"""Texts, items and maps for tests of retention.

Each text uses four letters of sixteen: who has read its beginning knows which, and who has not must guess.
"""

from __future__ import annotations

import random

import torch

from kvferry.handoff.mapping.contract import Context
from kvferry.handoff.mapping.shapes import LayerKv, Prefill
from kvferry.measure.retention.items import USER_TASK, Item

__all__ = ["Identity", "Noise", "asked", "continued", "letters"]


def letters(seed: int, characters: int) -> str:
    """A text of four letters in words of four."""
    drawn = random.Random(seed)
    four = drawn.sample("abcdefghijklmnop", 4)
    words = ["".join(drawn.choices(four, k=4)) for _ in range(characters // 5 + 1)]
    return " ".join(words)[:characters]


def continued(count: int, *, first: int = 0, context: int = 49) -> list[Item]:
    """Items with a continuation, each of a document of its own, from the document `first` on."""
    found = []
    for number in range(first, first + count):
        text = letters(10_000 + number, context + 25)
        parts = {"context": text[:context], "continuation": text[context:]}
        found.append(Item(task=USER_TASK, document=f"d{number}", **parts))
    return found


def asked(count: int) -> list[Item]:
    """Items with choices: the right one is of the text's own letters, the others of none of them."""
    found = []
    for number in range(count):
        text = letters(20_000 + number, 49)
        used = sorted(set(text) - {" "})
        unused = sorted(set("abcdefghijklmnop") - set(used))
        wrong = [" " + "".join(unused[at : at + 3]) for at in (0, 3, 6)]
        found.append(
            Item(
                task=USER_TASK,
                document=f"q{number}",
                context=text,
                choices=(" " + "".join(used[:3]), *wrong),
                answer=0,
            )
        )
    return found


class Identity:
    """The map of a model to itself."""

    name = "identity"
    trained_tokens = 0
    positions = 128

    def carry(self, context: Context, source: Prefill, positions: torch.Tensor) -> Prefill:
        return Prefill(source.layers, positions)


class Noise:
    """KV that has nothing to do with the context."""

    name = "noise"
    trained_tokens = 0
    positions = 128

    def carry(self, context: Context, source: Prefill, positions: torch.Tensor) -> Prefill:
        generator = torch.Generator().manual_seed(len(context.text))
        layers = [
            LayerKv(
                torch.randn(layer.keys.shape, generator=generator) * layer.keys.std(),
                torch.randn(layer.values.shape, generator=generator) * layer.values.std(),
            )
            for layer in source.layers
        ]
        return Prefill(layers, positions)
