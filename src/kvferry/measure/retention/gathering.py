"""The items of a measurement: the user's and the bundled ones, in two groups and an order.

Owns which items there are, how long the bundled ones' contexts are where nobody says, and which group each
item is of: within the calibrated positions, or longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ...errors import UsageError
from .items import Item, one_document
from .longer import is_longer
from .reader import Reader
from .requirements import Requirement
from .tasks import Room, make_items
from .tasks.library import digest_of, library_documents

__all__ = ["Gathered", "Wanted", "context_tokens", "gather"]

_CONTEXT_TOKENS = 192
_LEAST_CONTEXT_TOKENS = 32
_SLACK = 8
"""What a tokenizer's marks, and a sentence that was put in, may add to a bundled context."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured."""

    tasks: tuple[str, ...] = ()
    user_items: tuple[Item, ...] = ()
    items_file: str = ""
    limit: int = 8
    """Items of each bundled task, and conversations."""
    context_tokens: int | None = None
    """Of bundled items; the user's are as long as they are. None: 192, or what is calibrated where it is
    less."""
    longer_tokens: int | None = None
    """Contexts of as many bundled items more, beyond the calibrated positions; None: there are none."""
    continuation_tokens: int = 128
    hold_back: tuple[int, ...] = (1, 16, 64)
    seed: int = 0
    without: frozenset[str] = frozenset()
    """Digests of texts that the map was fitted on, besides those that the map itself names."""
    required: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """Items in the order in which they are asked."""

    inside: list[Item] = field(default_factory=list)
    longer: list[Item] = field(default_factory=list)

    @property
    def all(self) -> list[Item]:
        return [*self.inside, *self.longer]


def context_tokens(wanted: Wanted, calibrated: int | None) -> int:
    """Tokens of the bundled items' contexts: inside the calibrated positions, where nobody says another."""
    if wanted.context_tokens is not None:
        return wanted.context_tokens
    room = _CONTEXT_TOKENS if calibrated is None else calibrated - _SLACK
    return max(_LEAST_CONTEXT_TOKENS, min(_CONTEXT_TOKENS, room))


def gather(wanted: Wanted, target: Reader, calibrated: int | None) -> Gathered:
    """Raises `UsageError` where there are none, and for longer ones that cannot be told from the others."""
    items = [*wanted.user_items]
    if wanted.tasks:
        room = Room(context_tokens(wanted, calibrated), wanted.continuation_tokens, target.cut)
        items += make_items(
            wanted.tasks, room=room, limit=wanted.limit, seed=wanted.seed, without=wanted.without
        )
    if wanted.longer_tokens is not None:
        items += _longer(wanted, wanted.longer_tokens, items, target, calibrated)
    items = one_document(items)
    if not items:
        raise UsageError("nothing to measure: name tasks with --tasks, or items with --items")
    long = [is_longer(item, target, calibrated) for item in items]
    return Gathered(*(_apart([one for one, is_long in zip(items, long, strict=True) if is_long is group])
                      for group in (False, True)))  # fmt: skip


def _longer(
    wanted: Wanted, tokens: int, others: Sequence[Item], target: Reader, calibrated: int | None
) -> list[Item]:
    """As many bundled items again, of other documents."""
    if calibrated is None:
        raise UsageError("--longer-tokens: this map does not say which positions it was calibrated on")
    least = calibrated + _LEAST_CONTEXT_TOKENS
    if tokens < least:
        raise UsageError(
            f"--longer-tokens {tokens:,}: the map was calibrated on {calibrated:,} positions; "
            f"write {least:,} or more"
        )
    if not wanted.tasks:
        raise UsageError("--longer-tokens is the length of bundled items: name tasks with --tasks")
    used = {item.document for item in others}
    read = {digest_of(text) for name, text in library_documents(wanted.seed) if name in used}
    made = make_items(
        wanted.tasks,
        room=Room(tokens, wanted.continuation_tokens, target.cut),
        limit=wanted.limit,
        seed=wanted.seed,
        without=wanted.without | read,
    )
    # Made-up documents are numbered in each call.
    return [
        msgspec.structs.replace(item, document=f"{item.document}, longer") if item.document in used else item
        for item in made
    ]


def _apart(items: Sequence[Item]) -> list[Item]:
    """In an order in which neighbours are of different documents, as far as there are such."""
    by_document: dict[str, list[Item]] = {}
    for item in items:
        by_document.setdefault(item.document, []).append(item)
    found: list[Item] = []
    while by_document:
        for document in list(by_document):
            found.append(by_document[document].pop(0))
            if not by_document[document]:
                del by_document[document]
    return found
