"""Hits of a cache that forgets nothing, under five denominators at once.

The same file gives 36.6, 37.4, 38.2 or 40.9 %, by what is divided by what. Matched are the leading blocks
that an earlier request had; what a request brings is there for those behind it.

    by_token          sum of min(matched x block, input)        over  sum of input
    by_block          sum of matched, the partial last included over  sum of blocks
    by_full_block     sum of min(matched, floor(input / block)) over  sum of floor(input / block)
    mean_of_requests  mean over requests of min(matched x block, input) / input
    useful_tokens     sum of full matched x block               over  sum of input
"""

from __future__ import annotations

import numpy as np

from .result import Hits
from .touched import Touched

__all__ = ["HitCount"]


class HitCount:
    """The sums of all five."""

    def __init__(self) -> None:
        self.requests = 0
        self.input_tokens = 0
        self.hit_tokens = 0
        self.useful_tokens = 0
        self.blocks = 0
        self.matched_blocks = 0
        self.full_blocks = 0
        self.matched_full_blocks = 0
        self.shares = 0.0

    def add(self, touched: Touched) -> None:
        """Count a chunk."""
        hit = touched.matched_tokens
        self.requests += len(hit)
        self.input_tokens += int(touched.input_tokens.sum())
        self.hit_tokens += int(hit.sum())
        self.useful_tokens += int(touched.useful_tokens.sum())
        self.blocks += len(touched.blocks)
        self.matched_blocks += int(touched.matched.sum())
        self.full_blocks += int(touched.full_blocks.sum())
        self.matched_full_blocks += int(np.minimum(touched.matched, touched.full_blocks).sum())
        self.shares += float((hit / np.maximum(touched.input_tokens, 1)).sum())

    def merged(self, other: HitCount) -> HitCount:
        """The counts of two traces that share nothing."""
        both = HitCount()
        for name, value in vars(self).items():
            setattr(both, name, value + getattr(other, name))
        return both

    def ratios(self) -> Hits:
        """The five ratios; 0 where there is nothing to divide by."""
        return Hits(
            by_token=_over(self.hit_tokens, self.input_tokens),
            by_block=_over(self.matched_blocks, self.blocks),
            by_full_block=_over(self.matched_full_blocks, self.full_blocks),
            mean_of_requests=_over(self.shares, self.requests),
            useful_tokens=_over(self.useful_tokens, self.input_tokens),
        )


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
