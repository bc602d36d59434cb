"""Whether a trace's names stand for whole prefixes, as everything that follows takes for granted.

Owns the check: a block always follows the same one. It keeps one number a different block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from .row import Row

__all__ = ["ChainCheck"]


class ChainCheck:
    """Checks that an id names a whole prefix: it always follows the same one."""

    def __init__(self) -> None:
        self._before = np.empty(0, dtype=np.int64)
        self._known = 0

    def check(self, rows: list[Row], blocks: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        """Raises `FormatError` where a block follows another one than at its first appearance."""
        if not len(blocks):
            return
        before = np.empty_like(blocks)
        before[1:] = blocks[:-1]
        starts = offsets[:-1]
        before[starts[starts < len(blocks)]] = -1
        known = max(self._known, int(blocks.max()) + 1)
        if known > len(self._before):
            grown = np.empty(max(known, 2 * len(self._before), 1 << 16), dtype=np.int64)
            grown[: self._known] = self._before[: self._known]
            self._before = grown
        new = np.flatnonzero(blocks >= self._known)
        # Backwards, so that the first appearance is what stays.
        self._before[blocks[new][::-1]] = before[new][::-1]
        self._known = known
        wrong = np.flatnonzero(self._before[blocks] != before)
        if len(wrong):
            row = rows[int(np.searchsorted(offsets, wrong[0], side="right")) - 1]
            place = int(wrong[0] - offsets[np.searchsorted(offsets, wrong[0], side="right") - 1])
            raise FormatError(
                f"{row.path}:{row.line}: block {place} of this request follows another block than where its "
                "name stood first; a name must stand for the whole prefix up to its block (a chained hash), "
                "not for the tokens of the block alone"
            )
