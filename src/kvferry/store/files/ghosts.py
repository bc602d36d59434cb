"""The filter of evicted keys, mapped from one file by every process that shares the directory.

Owns the file. Keys are added under the directory's lock; asking needs none, since a bit read too early only
makes an eviction unknown.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ..bloom import BITS_PER_KEY, PAIR_HEADER_BYTES, GhostFilter, pair_bytes

__all__ = ["open_ghosts"]

_MODE = 0o660


def open_ghosts(path: Path, keys: int) -> GhostFilter:
    """Map the filter, making it for `keys` on first use; the size of an existing file holds.

    The directory's lock is held. Raises `OSError`, and `FormatError` for a file that is no filter.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            size = pair_bytes(keys)
            # Not sparse: a full disk must show now, not as a bus error when a page is written.
            os.posix_fallocate(fd, 0, size)
        mapping = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    words = (size - PAIR_HEADER_BYTES) // 16
    return GhostFilter(memoryview(mapping), max(1, words * 64 // BITS_PER_KEY))
