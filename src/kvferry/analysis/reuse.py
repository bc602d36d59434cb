"""Exact reuse distances of every access, and the whole curve of hits against capacity, in one pass.

One cache, least recently used first, a request at a time: a request finds the longest matched prefix, then
all its blocks are used, and of those its tail goes first. So the cache is a stack: a request puts its blocks
on top, its first block uppermost, and a cache of C blocks holds the upper C. The reuse distance of an access
is the depth of its block before the request, itself included: the different blocks, and so the bytes, that a
cache must hold to hit it. Every capacity's hits follow from the depths at once.

Given one block a request, the same code is the textbook's LRU, access by access, as other tools have it.

Memory grows with different blocks. Compiled where numba is installed (`kernels`), the same in Python where
not.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Curve", "Stack", "grown", "has_kernels"]

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Scalar = TypeVar("_Scalar", bound=np.generic)
_COARSE = 10
"""The pure path counts live positions in groups of 2 ** 10."""


def has_kernels() -> bool:
    """Whether the extra `fast` is installed."""
    return find_spec("numba") is not None


def grown(array: npt.NDArray[_Scalar], length: int, fill: float) -> npt.NDArray[_Scalar]:
    """`array` with room for `length` along its last axis, at least doubled; new places hold `fill`."""
    have = array.shape[-1]
    if length <= have:
        return array
    more = np.full((*array.shape[:-1], max(length, 2 * have, 1024)), fill, dtype=array.dtype)
    more[..., :have] = array
    return more


class Stack:
    """The LRU stack of all blocks seen so far, as positions in the order of last use.

    `compiled`: None takes the kernels where numba is installed.
    """

    def __init__(self, *, compiled: bool | None = None) -> None:
        self.compiled = has_kernels() if compiled is None else compiled
        self.unique = 0
        """Different blocks so far; ids are dense."""
        self.uses: _Int32 = np.zeros(0, dtype=np.int32)
        """Requests that asked for a block, by id."""
        self._last: _Int32 = np.full(0, -1, dtype=np.int32)
        self._seen_at: _Floats = np.zeros(0)
        self._owner: _Int32 = np.zeros(0, dtype=np.int32)
        self._now = 0
        self._live = 0
        self._bits = np.zeros(0, dtype=np.uint64)
        self._tree: _Int32 = np.zeros(1, dtype=np.int32)
        self._alive = np.zeros(0, dtype=np.uint8)
        self._groups: _Int64 = np.zeros(0, dtype=np.int64)

    def access(
        self, offsets: _Int64, blocks: _Int64, arrival_seconds: _Floats
    ) -> tuple[_Int32, _Floats, _Int32, _Int64]:
        """Take a chunk of n requests and m accesses, and use its blocks.

        Gives, for each access, the depth of its block before its request (m, in blocks, itself included; 0
        where it or one before it had never been seen), the seconds since its last use (m, nan: none) and the
        requests that had asked for it (m); and for each request its leading blocks seen before (n).
        """
        self._make_room(blocks)
        depth = np.zeros(len(blocks), dtype=np.int32)
        age = np.full(len(blocks), np.nan)
        before = np.zeros(len(blocks), dtype=np.int32)
        matched = np.zeros(len(offsets) - 1, dtype=np.int64)
        if self.compiled:
            from .kernels import stack

            self._now, self._live = stack(
                offsets, blocks, arrival_seconds, self._last, self._seen_at, self.uses, self._bits,
                self._tree, self._owner, self._now, self._live, depth, age, before, matched,
            )  # fmt: skip
        else:
            self._walk(offsets, blocks, arrival_seconds, depth, age, before, matched)
        return depth, age, before, matched

    def _make_room(self, blocks: _Int64) -> None:
        if len(blocks):
            self.unique = max(self.unique, int(blocks.max()) + 1)
        self.uses = grown(self.uses, self.unique, 0)
        self._last = grown(self._last, self.unique, -1)
        self._seen_at = grown(self._seen_at, self.unique, np.nan)
        if self._now + len(blocks) <= len(self._owner):
            return
        # Positions of later uses have left holes: close them, so that positions stay within twice the blocks.
        owner = self._owner[: self._now]
        owner = owner[self._last[owner] == np.arange(self._now)]
        room = max(1 << 16, 2 * (len(owner) + len(blocks)))
        room += -room % (1 << _COARSE)
        self._now = self._live = len(owner)
        self._last[owner] = np.arange(len(owner))
        self._owner = np.zeros(room, dtype=np.int32)
        self._owner[: len(owner)] = owner
        alive = np.zeros(room, dtype=np.uint8)
        alive[: len(owner)] = 1
        if self.compiled:
            self._bits = np.packbits(alive, bitorder="little").view(np.uint64)
            ones = np.concatenate([[0], np.cumsum(alive.reshape(-1, 64).sum(axis=1, dtype=np.int64))])
            # Node i of a Fenwick tree sums the words that end with the i-th, as many as i's lowest bit says.
            node = np.arange(len(ones))
            self._tree = (ones - ones[node - (node & -node)]).astype(np.int32)
        else:
            self._alive = alive
            self._groups = alive.reshape(-1, 1 << _COARSE).sum(axis=1, dtype=np.int64)

    def _walk(
        self,
        offsets: _Int64,
        blocks: _Int64,
        arrival: _Floats,
        depth: _Int32,
        age: _Floats,
        before: _Int32,
        matched: _Int64,
    ) -> None:
        last, uses = self._last, self.uses
        for request in range(len(offsets) - 1):
            start, stop = int(offsets[request]), int(offsets[request + 1])
            if start == stop:
                continue
            asked = blocks[start:stop]
            position = last[asked]
            unseen = np.flatnonzero(position < 0)
            found = int(unseen[0]) if len(unseen) else len(asked)
            matched[request] = found
            if found:
                depth[start : start + found] = self._depths(position[:found])
            before[start:stop] = uses[asked]
            fresh = np.arange(self._now + len(asked) - 1, self._now - 1, -1, dtype=np.int32)
            last[asked] = fresh
            if (last[asked] != fresh).any():
                # A block twice in one request, which no chain has: its last place counts.
                keep = len(asked) - 1 - np.sort(np.unique(asked[::-1], return_index=True)[1])[::-1]
                twice = np.ones(len(asked), dtype=bool)
                twice[keep] = False
                before[start:stop][twice] += 1
                self._use(asked[keep], position[keep], arrival[request], age, start + keep)
            else:
                self._use(asked, position, arrival[request], age, np.arange(start, stop))

    def _depths(self, position: _Int32) -> _Int64:
        run = np.flatnonzero(np.concatenate([[True], position[1:] != position[:-1] - 1]))
        length = np.diff(np.concatenate([run, [len(position)]]))
        base = np.array([self._behind(int(position[at])) for at in run], dtype=np.int64)
        within = np.arange(len(position)) - np.repeat(run, length)
        return np.maximum.accumulate(np.repeat(base, length) + within)

    def _behind(self, position: int) -> int:
        """Live positions from `position` on."""
        group = (position >> _COARSE) + 1
        tail = np.count_nonzero(self._alive[position : group << _COARSE])
        return int(tail + self._groups[group : (self._now >> _COARSE) + 1].sum())

    def _use(self, asked: _Int64, position: _Int32, time: float, age: _Floats, at: _Int64) -> None:
        count, now = len(asked), self._now
        old = position[position >= 0]
        self._alive[old] = 0
        np.subtract.at(self._groups, old >> _COARSE, 1)
        self._last[asked] = np.arange(now + count - 1, now - 1, -1)
        self._owner[now : now + count] = asked[::-1]
        self._alive[now : now + count] = 1
        for group in range(now >> _COARSE, ((now + count - 1) >> _COARSE) + 1):
            low, high = max(now, group << _COARSE), min(now + count, (group + 1) << _COARSE)
            self._groups[group] += high - low
        age[at] = time - self._seen_at[asked]
        self._seen_at[asked] = time
        self.uses[asked] += 1
        self._now = now + count
        self._live += count - len(old)


class Curve:
    """Tokens by reuse distance: hits at every capacity. Full blocks and partial ones are counted apart."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._full: _Int64 = np.zeros(1, dtype=np.int64)
        """Accesses to full blocks at each depth in blocks; [0] is what was never seen."""
        self._partial: _Int64 = np.zeros(1, dtype=np.int64)
        """Tokens of partial blocks at each depth."""

    def add(self, depth: _Int32, tokens: _Int64, full: npt.NDArray[np.bool_]) -> None:
        """Count the accesses of a chunk: depth, tokens and whether the block is a full one."""
        partial = ~full
        self._full = _added(self._full, np.bincount(depth[full]))
        # Sums of a chunk are far below 2^53, so counting in floats is exact.
        self._partial = _added(
            self._partial, np.bincount(depth[partial], weights=tokens[partial]).astype(np.int64)
        )

    def hit_tokens(self, capacity_blocks: int | None) -> int:
        """Tokens hit by a cache of so many blocks; None: without limit."""
        return self.useful_tokens(capacity_blocks) + _upto(self._partial, capacity_blocks)

    def useful_tokens(self, capacity_blocks: int | None) -> int:
        """The same, of full blocks only."""
        return _upto(self._full, capacity_blocks) * self._block_tokens

    def cumulated(self) -> tuple[_Int64, _Int64]:
        """(hit tokens, useful tokens) at every capacity from 0 blocks to the deepest reuse."""
        length = max(len(self._full), len(self._partial))
        useful, partial = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
        useful[1 : len(self._full)] = self._full[1:] * self._block_tokens
        partial[1 : len(self._partial)] = self._partial[1:]
        useful = np.cumsum(useful)
        return useful + np.cumsum(partial), useful

    def enough(self, share: float) -> int:
        """The least capacity in blocks that hits `share` of what a cache without limit hits."""
        hits, _ = self.cumulated()
        return int(np.searchsorted(hits, share * hits[-1] * (1 - 1e-12))) if hits[-1] else 0


def _upto(by_depth: _Int64, capacity: int | None) -> int:
    return int(by_depth[1 : None if capacity is None else capacity + 1].sum())


def _added(to: _Int64, more: _Int64) -> _Int64:
    if len(more) > len(to):
        longer = np.zeros(max(len(more), 2 * len(to)), dtype=np.int64)
        longer[: len(to)] = to
        to = longer
    to[: len(more)] += more
    return to
