"""JSON inside a text: where it stands, and whether two pieces of it say the same.

Owns finding the outermost JSON value around a character, and telling apart an order of keys, a way of
writing (spaces, escapes) and a difference of content.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .volatile import without_volatile

__all__ = ["Embedded", "canonical", "enclosing", "key_order_path", "same_but_volatile", "style"]

_DECODER = json.JSONDecoder()
_TRIES = 48
_LONGEST = 1 << 18


class Embedded(NamedTuple):
    """A JSON object or array inside a text."""

    start: int
    end: int
    value: Any


def enclosing(text: str, at: int, start: int, end: int) -> Embedded | None:
    """The outermost JSON object or array in `text[start:end]` that holds the character `at`."""
    start = max(start, at - _LONGEST)
    position = start
    for _ in range(_TRIES):
        position = _next_bracket(text, position, min(at + 1, end))
        if position < 0:
            return None
        try:
            value, stop = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        if at < stop <= end:
            return Embedded(position, stop, value)
        position = max(stop, position + 1)
    return None


def canonical(value: Any) -> str:
    """One text for all ways of writing the same value."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def same_but_volatile(left: Any, right: Any) -> bool:
    """Whether two values are equal once dates and identifiers in them are set aside."""
    return without_volatile(canonical(left)) == without_volatile(canonical(right))


def key_order_path(left: Any, right: Any, path: str = "$", *, named: bool = True) -> str | None:
    """Path of the first object whose keys stand in another order, such as `$.function.parameters`.

    None if all agree. Without `named` keys on the way are `*`: they may be content.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        shared = [key for key in left if key in right]
        if shared != [key for key in right if key in left]:
            return path
        children = [(f"{path}.{key if named else '*'}", left[key], right[key]) for key in shared]
    elif isinstance(left, list) and isinstance(right, list):
        children = [
            (f"{path}[{at}]", one, two) for at, (one, two) in enumerate(zip(left, right, strict=False))
        ]
    else:
        return None
    found = (key_order_path(one, two, below, named=named) for below, one, two in children)
    return next((below for below in found if below is not None), None)


def style(text: str, value: Any) -> str:
    """How a value was written: `compact`, `spaced`, `indented 2` and so on, `escaped` when so; `mixed` if by
    no rule."""
    for ascii_only in (False, True):
        ending = ", escaped" if ascii_only and not canonical(value).isascii() else ""
        for name, separators, indent in _STYLES:
            if json.dumps(value, ensure_ascii=ascii_only, separators=separators, indent=indent) == text:
                return name + ending
    return "mixed"


_STYLES: tuple[tuple[str, tuple[str, str] | None, int | str | None], ...] = (
    ("compact", (",", ":"), None),
    ("spaced", (", ", ": "), None),
    ("indented 2", None, 2),
    ("indented 4", None, 4),
    ("indented by a tab", None, "\t"),
)


def _next_bracket(text: str, start: int, end: int) -> int:
    found = [at for at in (text.find("{", start, end), text.find("[", start, end)) if at >= 0]
    return min(found, default=-1)
