"""The bundled tasks: made when they are asked for, from a seed and the standard library, with no download.

`library` finds texts; each other module makes the items of one task. The standard library differs between
versions of Python, so items are the same for one seed and one Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from ....errors import UsageError
from ..items import Item
from .cloze import cloze_items
from .code import code_items
from .library import Room, library_documents
from .needle import needle_items
from .recall import recall_items

__all__ = ["TASKS", "Room", "make_items"]

_Maker = Callable[[Sequence[tuple[str, str]], Room, int, Random], list[Item]]

TASKS: Mapping[str, _Maker] = {
    "needle": needle_items,
    "recall": recall_items,
    "cloze": cloze_items,
    "code": code_items,
}


def make_items(
    names: Sequence[str], *, room: Room, limit: int, seed: int, without: frozenset[str] = frozenset()
) -> list[Item]:
    """`limit` items of each task that is named, no document in two of them.

    `without` holds digests of texts that may not be used (`library.digest_of`). Raises `UsageError` for a
    task that is not known or has not so many items.
    """
    if unknown := [name for name in names if name not in TASKS]:
        raise UsageError(f"--tasks: there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    documents = library_documents(seed, without=without)
    found: list[Item] = []
    for name in dict.fromkeys(names):
        made = TASKS[name](documents, room, limit, Random(f"{seed} {name}"))
        used = {item.document for item in made}
        documents = [one for one in documents if one[0] not in used]
        if len(made) < limit:
            raise UsageError(
                f"--limit {limit}: the task {name} makes {len(made)} items of the texts that are here; "
                "lower --limit, or leave the task out with --tasks"
            )
        found += made
    return found
