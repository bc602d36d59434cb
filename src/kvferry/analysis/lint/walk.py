"""Walks two prompts side by side past every difference that has a cause.

Owns the order in which causes are tried: what can be proved (the same tools, the same JSON) before what is
likely, and free text last. The walk ends where the prompts differ by right, or one of them ends.
"""

from __future__ import annotations

from typing import NamedTuple

from .json_texts import meet_json, meet_json_and_volatile
from .jump import Cause, Detector, Jump
from .markup import meet_markup, meet_setup
from .pictures import meet_images
from .prompt import Prompt, common_length
from .resync import meet_again
from .spelling import meet_spelling
from .tool_lists import meet_tool_lines, meet_tool_set, meet_tools
from .trimming import meet_trimmed
from .volatile import meet_volatile

__all__ = ["Step", "Walk", "walk"]

_MOST_STEPS = 8192
_ALIKE_FROM = 64
"""Steps from which the detector of the last step is asked first: other line ends make thousands."""


class Step(NamedTuple):
    """One difference that was bridged, in offsets of both texts."""

    cause: Cause
    left_at: int
    right_at: int
    left_next: int
    right_next: int
    place: str
    line: int
    """Line inside the place, from 1; 0 where that says nothing."""
    detail: str


class Walk(NamedTuple):
    """How far two prompts go together."""

    steps: list[Step]
    left_end: int
    right_end: int
    """Where the last stretch of agreement ends in the right prompt."""

    def reach(self, number: int) -> int:
        """Offset in the right prompt up to which it agrees once steps 0..number are mended."""
        return self.steps[number + 1].right_at if number + 1 < len(self.steps) else self.right_end


def _changing(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    found = meet_volatile(left.text, left_at, right.text, right_at)
    return [] if found is None else [Jump(found.kind, found.left_end, found.right_end)]


_DETECTORS: tuple[Detector, ...] = (
    meet_tools,
    meet_tool_lines,
    meet_images,
    meet_trimmed,
    meet_json,
    _changing,
    meet_json_and_volatile,
    meet_markup,
    meet_spelling,
    meet_tool_set,
    meet_again,
)

_REPEATED: dict[Cause, Detector] = {"whitespace": meet_spelling, "template": meet_markup}


def walk(left: Prompt, right: Prompt) -> Walk:
    """Every bridged difference from the first character on; `left` came before `right`."""
    steps = [Step(one.cause, 0, 0, 0, 0, one.place, 0, one.detail) for one in meet_setup(left, right)]
    left_at = right_at = common_length(left.text, 0, right.text, 0)
    while (left_at < len(left.text) or right_at < len(right.text)) and len(steps) < _MOST_STEPS:
        again = _REPEATED.get(steps[-1].cause) if len(steps) > _ALIKE_FROM else None
        jumps = again(left, left_at, right, right_at) if again is not None else []
        jumps = jumps or _bridge(left, left_at, right, right_at)
        if not jumps:
            break
        for jump in jumps:
            place = jump.place or right.place_at(right_at)
            line = 0 if jump.place else right.line_at(right_at)
            steps.append(
                Step(jump.cause, left_at, right_at, jump.left_next, jump.right_next, place, line, jump.detail)
            )
        left_at, right_at = jumps[-1].left_next, jumps[-1].right_next
        shared = common_length(left.text, left_at, right.text, right_at)
        left_at, right_at = left_at + shared, right_at + shared
    return Walk(steps, left_at, right_at)


def _bridge(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    # One of them ended: the other only goes on, as a growing conversation does.
    if left_at == len(left.text) or right_at == len(right.text):
        return []
    for detect in _DETECTORS:
        jumps = detect(left, left_at, right, right_at)
        if jumps and (jumps[-1].left_next, jumps[-1].right_next) != (left_at, right_at):
            return jumps
    return []
