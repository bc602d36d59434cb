"""The curve from a sample of the blocks: SHARDS (Waldspurger, FAST '15) at a fixed rate.

A block is in the sample by a hash of its id, always or never, so distances among sampled blocks are the true
ones times the rate. The sample's accesses miss the expected number by chance; the difference is booked at the
smallest distance, as SHARDS-adj does. Owns the sampling; the stack is the exact one's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .reuse import Stack
from .touched import Touched

__all__ = ["Sample"]

_Int64 = npt.NDArray[np.int64]


class Sample:
    """A stack of about `rate` of the blocks."""

    def __init__(self, rate: float, *, compiled: bool | None = None) -> None:
        self.rate = rate
        self.blocks = 0
        """Different blocks in the sample."""
        self._stack = Stack(compiled=compiled)
        self._names = np.zeros(0, dtype=np.int64)
        """Dense id in the sample by id in the trace; -1: not met yet."""
        self._depths: list[_Int64] = [np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)]
        self._tokens = [0, 0]
        self._all_tokens = [0, 0]

    def add(self, touched: Touched) -> None:
        """Take the sampled accesses of a chunk."""
        full_tokens = touched.tokens * touched.full
        self._all_tokens[0] += int(touched.tokens.sum())
        self._all_tokens[1] += int(full_tokens.sum())
        chosen = _hash(touched.blocks) < np.uint64(self.rate * 2.0**64 if self.rate < 1.0 else 2**64 - 1)
        ids = self._dense(touched.blocks[chosen])
        counts = np.bincount(touched.request[chosen], minlength=len(touched.matched))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        depth, _, _, _ = self._stack.access(offsets, ids, touched.arrival_seconds)
        for which, tokens in enumerate((touched.tokens[chosen], full_tokens[chosen])):
            self._tokens[which] += int(tokens.sum())
            more = np.bincount(depth, weights=tokens).astype(np.int64)
            have = self._depths[which]
            if len(more) > len(have):
                have = np.concatenate([have, np.zeros(max(len(more), 2 * len(have)) - len(have), np.int64)])
            have[: len(more)] += more
            self._depths[which] = have

    def hit_ratios(self, capacity_blocks: int, input_tokens: int) -> tuple[float, float]:
        """(by token, useful tokens) of one LRU cache of this capacity, over `input_tokens`."""
        # A block is one of its own distance; only the others are thinned out.
        upto = int((capacity_blocks - 1) * self.rate) + 1 if capacity_blocks else 0
        found = []
        for which in (0, 1):
            hits = int(self._depths[which][1 : upto + 1].sum()) / self.rate
            # The sample's accesses over the rate should be all accesses; what is missing is frequent blocks.
            hits += self._all_tokens[which] - self._tokens[which] / self.rate
            found.append(min(1.0, max(0.0, hits / input_tokens)) if input_tokens and upto else 0.0)
        return found[0], found[1]

    def _dense(self, blocks: _Int64) -> _Int64:
        if len(blocks):
            top = int(blocks.max()) + 1
            if top > len(self._names):
                longer = np.full(max(top, 2 * len(self._names)), -1, dtype=np.int64)
                longer[: len(self._names)] = self._names
                self._names = longer
        fresh = np.unique(blocks[self._names[blocks] < 0])
        self._names[fresh] = np.arange(self.blocks, self.blocks + len(fresh))
        self.blocks += len(fresh)
        return self._names[blocks]


def _hash(ids: _Int64) -> npt.NDArray[np.uint64]:
    """splitmix64: ids that follow each other land anywhere."""
    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
