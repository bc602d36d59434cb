"""Every token of every prompt by where it came from, or why it did not.

A prompt is cut at four places, none behind the next: what its replica held, what any replica held, what an
earlier request had, its last full block. The pieces are hit, placement, evicted and never seen; the rest is
the sub-block remainder. They sum to the prompt by construction. Counted in full blocks, because nothing less
can be loaded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .result import Misses
from .touched import Touched

__all__ = ["CauseCount"]

_Int64 = npt.NDArray[np.int64]


class CauseCount:
    """The five sums."""

    def __init__(self) -> None:
        self._sums = np.zeros(5, dtype=np.int64)

    def add(self, touched: Touched, held: _Int64, held_anywhere: _Int64) -> None:
        """Count a chunk; (n,) leading blocks that the chosen replica held, and that the best one held."""
        full, size = touched.full_blocks, touched.block_tokens
        own = np.minimum(held, full)
        anywhere = np.maximum(own, np.minimum(held_anywhere, full))
        seen = np.maximum(anywhere, np.minimum(touched.matched, full))
        parts = (own, full - seen, seen - anywhere, anywhere - own)
        self._sums[:4] += [int(part.sum()) * size for part in parts]
        self._sums[4] += int((touched.input_tokens - full * size).sum())

    def misses(self) -> Misses:
        """The sums, in tokens."""
        hit, never, evicted, placement, partial = (int(part) for part in self._sums)
        return Misses(hit=hit, never_seen=never, evicted=evicted, placement=placement, partial_block=partial)
