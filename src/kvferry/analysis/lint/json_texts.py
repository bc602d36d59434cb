"""Detects JSON in a text that says the same in another order of keys, or written another way."""

from __future__ import annotations

from .embedded import canonical, enclosing, key_order_path, same_but_volatile, style
from .jump import Jump
from .prompt import Prompt
from .volatile import volatile_kind

__all__ = ["meet_json", "meet_json_and_volatile"]


def meet_json(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Both prompts hold the same JSON value here, written differently."""
    return _meet(left, left_at, right, right_at, loosely=False)


def meet_json_and_volatile(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """The same, where dates or identifiers inside it differ too."""
    return _meet(left, left_at, right, right_at, loosely=True)


def _meet(left: Prompt, left_at: int, right: Prompt, right_at: int, *, loosely: bool) -> list[Jump]:
    piece, other = left.piece_at(left_at), right.piece_at(right_at)
    start, end = (piece.start, piece.end) if piece else (0, len(left.text))
    other_start, other_end = (other.start, other.end) if other else (0, len(right.text))
    one = enclosing(left.text, left_at, start, end)
    two = enclosing(right.text, right_at, other_start, other_end) if one else None
    if one is None or two is None:
        return []
    equal = canonical(one.value) == canonical(two.value)
    if not equal and not (loosely and same_but_volatile(one.value, two.value)):
        return []
    jumps = []
    path = key_order_path(one.value, two.value, named=False)
    if path is not None:
        jumps.append(Jump("json-key-order", one.end, two.end, path))
    ways = [
        style(left.text[one.start : one.end], one.value),
        style(right.text[two.start : two.end], two.value),
    ]
    if ways[0] != ways[1] or (equal and path is None):
        jumps.append(Jump("json-spacing", one.end, two.end, " / ".join(ways)))
    if not jumps:
        return []
    if not equal:
        jumps.append(
            Jump(
                volatile_kind(canonical(one.value), canonical(two.value)), one.end, two.end, "inside the JSON"
            )
        )
    return jumps
