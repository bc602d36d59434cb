"""A step past one difference of two prompts: its cause, and where the two go on.

Owns the names of the causes and the form of a finding of one detector. A detector gets two prompts and the
two offsets at which they part, and gives jumps in order, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from .prompt import Prompt

__all__ = ["CAUSES", "Cause", "Detector", "Jump"]

Cause: TypeAlias = Literal[
    "date",
    "id",
    "counter",
    "tool-order",
    "tool-set",
    "json-key-order",
    "json-spacing",
    "template",
    "tokenizer",
    "image",
    "whitespace",
    "early-text",
    "trimmed-history",
    "other",
]

CAUSES: dict[Cause, str] = {
    "date": "a date or a time",
    "id": "an identifier (uuid, request id, hash)",
    "counter": "a number that changes",
    "tool-order": "the order of the tools",
    "tool-set": "another set of tools",
    "json-key-order": "the order of keys in JSON",
    "json-spacing": "spaces, line breaks or escapes in JSON",
    "template": "another chat template",
    "tokenizer": "another tokenizer",
    "image": "an image",
    "whitespace": "spaces, line ends or Unicode forms",
    "early-text": "varying text before shared text",
    "trimmed-history": "a conversation trimmed at its beginning",
    "other": "edited text before shared text",
}
"""Every cause, in words."""


class Jump(NamedTuple):
    """One difference, bridged: the prompts go on at `left_next` and `right_next`."""

    cause: Cause
    left_next: int
    right_next: int
    detail: str = ""
    """What differs, by its structure only: never a piece of content."""
    place: str = ""
    """Where, if not simply at the offset."""


Detector: TypeAlias = Callable[[Prompt, int, Prompt, int], "list[Jump]"]
