"""Detects tools that stand in another order, are written with other keys first, or are another set."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .embedded import canonical, enclosing, key_order_path
from .jump import Jump
from .prompt import Piece, Prompt, common_length
from .volatile import volatile_kind, without_volatile

__all__ = ["meet_tool_lines", "meet_tool_set", "meet_tools"]

_LEAST_SHARED = 64
"""Characters behind two sets of tools that must agree for the sets to be what stands in the way."""


def meet_tools(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Both prompts hold the same tools, dates in their texts set aside."""
    tools, others = _both(left, left_at, right, right_at)
    if not tools:
        return []
    plain, plain_others = [canonical(one.value) for one in tools], [canonical(one.value) for one in others]
    loose, loose_others = (
        [without_volatile(one) for one in plain],
        [without_volatile(one) for one in plain_others],
    )
    if Counter(loose) != Counter(loose_others):
        return []
    ends = tools[-1].end, others[-1].end
    jumps = []
    if loose != loose_others:
        moved = next(two for two, one, other in zip(others, loose, loose_others, strict=True) if one != other)
        jumps.append(Jump("tool-order", *ends, f"the first that moved is {moved.place}", "tools"))
    partners = dict(zip(loose, tools, strict=True))
    turned = [
        (path, tool)
        for tool, text in zip(others, loose_others, strict=True)
        if (path := key_order_path(partners[text].value, tool.value)) is not None
    ]
    if turned:
        path, tool = turned[0]
        more = f", and in {len(turned) - 1} more tools" if len(turned) > 1 else ""
        jumps.append(Jump("json-key-order", *ends, path + more, tool.place))
    if Counter(plain) != Counter(plain_others):
        known = set(plain)
        changed = next(two for two, text in zip(others, plain_others, strict=True) if text not in known)
        kind = volatile_kind("\n".join(sorted(plain)), "\n".join(sorted(plain_others)))
        jumps.append(Jump(kind, *ends, "inside a tool", changed.place))
    if not jumps and any(isinstance(one.value, str) for one in others):
        jumps.append(Jump("json-spacing", *ends, "", right.place_at(right_at)))
    return jumps


def meet_tool_lines(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """The same for tools that were written into a text: a JSON array of them, or a line for each."""
    tools, others = _written(left, left_at), _written(right, right_at)
    if tools is None or others is None or len(tools[0]) != len(others[0]):
        return []
    plain, plain_others = [canonical(one) for one in tools[0]], [canonical(one) for one in others[0]]
    if plain == plain_others or Counter(plain) != Counter(plain_others):
        return []
    return [
        Jump(
            "tool-order",
            tools[1],
            others[1],
            f"{len(plain)} JSON objects in {right.place_at(right_at)}",
            "tools",
        )
    ]


def _written(prompt: Prompt, at: int) -> tuple[list[Any], int] | None:
    """The named JSON objects around a character, one in an array or on a line, and where their list ends."""
    piece = prompt.piece_at(at)
    if piece is None or piece.kind not in ("message", "prompt"):
        return None
    around = enclosing(prompt.text, at, piece.start, piece.end)
    if around is not None and isinstance(around.value, list):
        return (
            (around.value, around.end) if len(around.value) > 1 and all(map(_is_tool, around.value)) else None
        )
    start = prompt.text.rfind("\n", piece.start, at) + 1
    # The list may begin above the line at which the texts part.
    while start > piece.start:
        above = prompt.text.rfind("\n", piece.start, start - 1) + 1
        if above >= start or not _is_tool(_parsed(prompt.text[max(above, piece.start) : start - 1])):
            break
        start = above
    found, end = [], start
    while end < piece.end:
        stop = prompt.text.find("\n", end, piece.end)
        stop = piece.end if stop < 0 else stop
        tool = _parsed(prompt.text[end:stop])
        if not _is_tool(tool):
            break
        found.append(tool)
        end = stop + 1
    return (found, end - 1) if len(found) > 1 else None


def _parsed(line: str) -> Any:
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_tool(value: Any) -> bool:
    """An object with a name, as tools have it."""
    if not isinstance(value, dict):
        return False
    function = value.get("function")
    return "name" in value or (isinstance(function, dict) and "name" in function)


def meet_tool_set(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """The two lists name different tools, and what follows them agrees."""
    if not _in_tools(left, left_at) or not _in_tools(right, right_at):
        return []
    tools, others = left.tools, right.tools
    names, other_names = {one.name for one in tools}, {one.name for one in others}
    if names == other_names:
        return []
    left_end = max([one.end for one in tools], default=left_at)
    right_end = max([one.end for one in others], default=right_at)
    shared = common_length(left.text, left_end, right.text, right_end)
    if shared < _LEAST_SHARED and left_end + shared < len(left.text):
        return []
    detail = f"{len(other_names - names)} more, {len(names - other_names)} fewer"
    return [Jump("tool-set", left_end, right_end, detail, "tools")]


def _both(
    left: Prompt, left_at: int, right: Prompt, right_at: int
) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """The tools of both, if both offsets lie among them and they are as many."""
    tools, others = left.tools, right.tools
    if (
        len(tools) != len(others)
        or not tools
        or not _in_tools(left, left_at)
        or not _in_tools(right, right_at)
    ):
        return (), ()
    return tools, others


def _in_tools(prompt: Prompt, at: int) -> bool:
    tools = prompt.tools
    # One list may end where the other goes on: a character before and behind belong to it.
    return bool(tools) and tools[0].start - 1 <= at <= tools[-1].end + 1
