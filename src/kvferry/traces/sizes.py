"""Which size of block a trace is read in."""

from __future__ import annotations

from pathlib import Path

from ..errors import FormatError

__all__ = ["LARGEST_BLOCK", "block_size"]

LARGEST_BLOCK = 1 << 20
"""Tokens. Engines have 1 to some thousands."""


def block_size(path: Path, own: int, asked: int | None) -> int:
    """Tokens of a block: the file's own, or a multiple of it where one is asked for. Raises `FormatError`."""
    if not 1 <= own <= LARGEST_BLOCK:
        raise FormatError(f"{path}: blocks of {own} tokens: a block has 1 to {LARGEST_BLOCK:,}")
    if asked is None:
        return own
    if asked % own:
        raise FormatError(
            f"{path}: blocks have {own} tokens; --block-tokens has to be a multiple of that, not {asked}"
        )
    return asked
