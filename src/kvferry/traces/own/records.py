"""The lines of kvferry's trace format, version 1.

Owns the two records. The first line is the header, each further one a request. Blocks are numbered from 0 in
order of first appearance, and a request names them as runs of numbers; a block that appears for the first
time may carry a key, under which other files know it. So a file grows with its different blocks and its
requests, not with how often a block is asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..chunk import Naming

__all__ = ["TRACE_VERSION", "Header", "Line"]

TRACE_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    version: int = msgspec.field(name="kvferry_trace")
    block_tokens: int
    """0: the trace has lengths only."""
    names: Naming = "local"
    """keyed: new blocks carry keys, comparable between files under one secret; local: they do not."""
    source: str = ""
    """The format that this was made from, or "synthetic"."""
    began: float | None = None
    """Wall clock of t = 0, seconds since the epoch; absent where it is not to be told."""
    kvferry: str = ""
    """Release that wrote it."""
    recipe: dict[str, Any] | None = None
    """What a synthetic trace was made with: seed and classes."""


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """One request."""

    t: float
    """Seconds after the trace's beginning."""
    input_tokens: int = msgspec.field(name="in")
    output_tokens: int = msgspec.field(default=0, name="out")
    ids: list[int] = []
    """start, count, start, count, ...: runs of block numbers from the first block on, the partial one too."""
    keys: list[str | None] = []
    """Of the blocks that appear first in this request, which are its last ones; null for a partial block."""
    boundary: int = -1
    fields: dict[str, str] | None = None
