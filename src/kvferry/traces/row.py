"""One request between a format's reader and the columns, and what makes such a row bad.

Owns `Row` and its check. A reader yields rows in the order of its file; `assemble.py` does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["Row", "flaw"]

_MOST_TOKENS = 1 << 27
"""No prompt is longer; what says so would only be a way to run out of memory."""

_LARGEST_NUMBER = 1 << 48


class Row(msgspec.Struct, gc=False):
    """One request as a file has it."""

    arrival: float
    """Seconds, from any origin that the whole trace shares."""
    input_tokens: int
    output_tokens: int
    names: Sequence[Any]
    """Of its blocks from the first on: all of them, or the full ones only. With `runs`, integers in pairs:
    start and count of runs of consecutive numbers."""
    path: str = ""
    line: int = 0
    """From 1; 0 where the format has no lines."""
    scope: int = 0
    """Which names may be equal: those of one scope."""
    runs: bool = False
    boundary: int = -1
    fields: dict[str, str] | None = None


def flaw(row: Row, block_tokens: int, has_blocks: bool) -> str | None:
    """What is wrong with a row, in words; None when it is sound. `block_tokens` is the source's own."""
    if not math.isfinite(row.arrival):
        return f"the time of arrival is {row.arrival}: it has to be a finite number"
    if not (0 <= row.input_tokens <= _MOST_TOKENS and 0 <= row.output_tokens <= _MOST_TOKENS):
        return f"{row.input_tokens} input and {row.output_tokens} output tokens are no amounts"
    if not -1 <= row.boundary < _LARGEST_NUMBER:
        return f"a publication boundary of {row.boundary} tokens is none: write 0 or more, or leave it out"
    if not has_blocks:
        return None
    full = row.input_tokens // block_tokens
    most = -(-row.input_tokens // block_tokens)
    if row.runs:
        if len(row.names) % 2:
            return "runs of blocks are pairs of start and count; the last one lacks its count"
        count = sum(row.names[1::2])
        wrong = row.names and (min(row.names) < 0 or min(row.names[1::2]) < 1)
        if wrong or max(row.names, default=0) >= _LARGEST_NUMBER:
            return "a run of blocks starts at 0 or more and has at least one block"
    else:
        count = len(row.names)
    if count not in (full, most):
        wanted = str(most) if full == most else f"{most}, or {full} without the partial one"
        return f"{count} blocks, where {row.input_tokens} tokens in blocks of {block_tokens} make {wanted}"
    return None
