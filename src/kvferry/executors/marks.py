"""Keys beside a block's own, for marks that are not blocks."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["SHADOW", "TOUCH", "mark"]

SHADOW = b"shadow"
"""The block would have been stored: shadow mode."""
TOUCH = b"touch"
"""Some replica has asked for the block."""


def mark(key: bytes, purpose: bytes) -> bytes:
    """The key of the mark for `purpose` beside the block `key`."""
    return blake2b(key, digest_size=32, person=purpose).digest()
