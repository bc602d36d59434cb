"""A chunk with what the stack says of it: one row per access, from which every other count follows.

Owns the derived columns and no state. Blocks are full where their whole `block_tokens` belong to the prompt;
what is left behind them is the partial block, which is no use to anybody but the very same prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..traces.chunk import TraceChunk
from .reuse import Stack

__all__ = ["Touched", "touch"]

_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """n requests and m accesses; `first_request` counts the requests of earlier chunks."""

    first_request: int
    arrival_seconds: npt.NDArray[np.float64]
    input_tokens: _Int64
    offsets: _Int64
    blocks: _Int64
    boundary_tokens: _Int64
    block_tokens: int
    matched: _Int64
    """(n,) leading blocks that an earlier request had."""
    full_blocks: _Int64
    """(n,) floor(input / block)."""
    request: _Int64
    """(m,) index of the access's request in this chunk."""
    tokens: _Int64
    """(m,) of the prompt in this block."""
    full: npt.NDArray[np.bool_]
    """(m,)"""
    depth: npt.NDArray[np.int32]
    """(m,) reuse distance in blocks; 0: never seen."""
    age: npt.NDArray[np.float64]
    """(m,) seconds since the block was last used; nan: never."""
    before: npt.NDArray[np.int32]
    """(m,) requests that had asked for it."""

    @property
    def matched_tokens(self) -> _Int64:
        """(n,) min(matched x block, input)."""
        return np.minimum(self.matched * self.block_tokens, self.input_tokens)

    @property
    def useful_tokens(self) -> _Int64:
        """(n,) tokens of matched full blocks."""
        return np.minimum(self.matched, self.full_blocks) * self.block_tokens

    def matched_within(self, capacity_blocks: int | None) -> _Int64:
        """(n,) leading blocks that one LRU cache of this capacity held."""
        if capacity_blocks is None:
            return self.matched
        held = (self.depth > 0) & (self.depth <= capacity_blocks)
        return np.bincount(self.request, weights=held, minlength=len(self.matched)).astype(np.int64)


def touch(chunk: TraceChunk, stack: Stack, block_tokens: int, first_request: int) -> Touched:
    """Run a chunk through the stack."""
    depth, age, before, matched = stack.access(chunk.offsets, chunk.blocks, chunk.arrival_seconds)
    counts = np.diff(chunk.offsets)
    request = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(chunk.blocks)) - np.repeat(chunk.offsets[:-1], counts)
    tokens = np.minimum(block_tokens, chunk.input_tokens[request] - number * block_tokens)
    return Touched(
        first_request=first_request,
        arrival_seconds=chunk.arrival_seconds,
        input_tokens=chunk.input_tokens,
        offsets=chunk.offsets,
        blocks=chunk.blocks,
        boundary_tokens=chunk.boundary_tokens,
        block_tokens=block_tokens,
        matched=matched,
        full_blocks=chunk.input_tokens // block_tokens,
        request=request,
        tokens=tokens,
        full=tokens == block_tokens,
        depth=depth,
        age=age,
        before=before,
    )
