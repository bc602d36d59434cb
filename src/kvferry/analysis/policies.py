"""Eviction policies at one capacity, by simulation: what a store of this size would have hit.

The policies are the store's own (LRU, S3-FIFO and the cost-aware GDSF, each under the rule that no block goes
before one that continues it), fed a request at a time: it reads its longest held prefix and stores the rest
of its prompt. Belady's rule is the bound. What a block is worth to the cost-aware policy grows with its
context, as attention does.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

from ..errors import UsageError
from ..store.eviction import POLICIES, Evictor
from .touched import Touched

__all__ = ["SIMULATED", "Belady", "PolicyCache", "Simulated", "simulate"]

SIMULATED = (*POLICIES, "belady")
_EVEN_CONTEXT = 28_000
"""Tokens of context at which attention costs a block as much as the weights do: an 8B model's, assumed."""


class Simulated:
    """A cache that counts what it hits."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.hit_tokens = 0
        self.useful_tokens = 0

    def add(self, touched: Touched) -> None:
        """Take a chunk."""
        raise NotImplementedError

    def finish(self) -> None:
        """The trace has ended."""

    def _count(self, matched: int, length: int, size: int) -> None:
        self.hit_tokens += min(matched * size, length)
        self.useful_tokens += min(matched, length // size) * size


class PolicyCache(Simulated):
    """One of the store's policies; bounded memory."""

    def __init__(self, policy: str, capacity_blocks: int) -> None:
        super().__init__(capacity_blocks)
        self._evictor = Evictor(POLICIES[policy]())
        self._held: set[bytes] = set()

    def add(self, touched: Touched) -> None:
        size, held, evictor = touched.block_tokens, self._held, self._evictor
        names = [b"%d" % block for block in touched.blocks.tolist()]
        for request, length in enumerate(touched.input_tokens.tolist()):
            keys = names[touched.offsets[request] : touched.offsets[request + 1]]
            hit = next((i for i, key in enumerate(keys) if key not in held), len(keys))
            self._count(hit, length, size)
            keys = keys[: self.capacity_blocks]
            evictor.use(keys[:hit])
            ours = set(keys)
            fresh: list[tuple[bytes, int, float | None]] = []
            for number, key in enumerate(keys):
                if key in held:
                    continue
                if len(held) + len(fresh) >= self.capacity_blocks:
                    victim = evictor.choose(ours.__contains__)
                    if victim is None:
                        break
                    evictor.remove(victim)
                    held.remove(victim)
                fresh.append((key, 1, size * (1.0 + number * size / _EVEN_CONTEXT)))
            evictor.insert(keys, fresh)
            held.update(key for key, _, _ in fresh)


class Belady(Simulated):
    """Keeps what is asked for soonest, knowing the future: no policy hits more. Holds the whole trace."""

    def __init__(self, capacity_blocks: int) -> None:
        super().__init__(capacity_blocks)
        self._size = 1
        self._requests: list[list[int]] = []
        self._lengths: list[int] = []

    def add(self, touched: Touched) -> None:
        self._size = touched.block_tokens
        blocks, offsets = touched.blocks.tolist(), touched.offsets.tolist()
        self._requests += [blocks[a:b] for a, b in pairwise(offsets)]
        self._lengths += touched.input_tokens.tolist()

    def finish(self) -> None:
        following: dict[int, int] = {}
        next_uses: list[list[int | None]] = []
        for number in range(len(self._requests) - 1, -1, -1):
            asked = self._requests[number]
            next_uses.append([following.get(block) for block in asked])
            following.update(dict.fromkeys(asked, number))
        next_uses.reverse()
        held: dict[int, int] = {}
        latest: list[tuple[int, int]] = []
        for asked, length, coming in zip(self._requests, self._lengths, next_uses, strict=True):
            hit = next((i for i, block in enumerate(asked) if block not in held), len(asked))
            self._count(hit, length, self._size)
            for block, again in zip(asked, coming, strict=True):
                if again is None:
                    held.pop(block, None)
                    continue
                held[block] = again
                # Of what is asked for together the tail goes first; ids grow along a chain.
                heapq.heappush(latest, (-again, -block))
            while len(held) > self.capacity_blocks:
                again, block = heapq.heappop(latest)
                if held.get(-block) == -again:
                    del held[-block]


def simulate(policy: str, capacity_blocks: int) -> Simulated:
    """A cache under a policy of `SIMULATED`. Raises `UsageError` for another one."""
    if policy == "belady":
        return Belady(capacity_blocks)
    if policy not in POLICIES:
        raise UsageError(f"policies: {policy!r} is none; write some of {', '.join(SIMULATED)}")
    return PolicyCache(policy, capacity_blocks)
