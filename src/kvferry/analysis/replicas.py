"""Replicas that each hold an LRU cache of one capacity, and requests that are sent to one of them.

Requests come in order and at once: there are no queues, so a routing's load is the tokens that it has made
each replica compute. A replica's cache works a request at a time, as `reuse` says. Compiled where numba is
installed, the same in Python where not.

    random             a seeded draw
    round-robin        in turn
    least-loaded       the replica that has computed the fewest tokens
    longest-prefix     the longest matched prefix; among equals the least loaded
    prefix-plus-load   the most of: matched tokens - 1/2 x tokens computed; among equals the least loaded

What remains equal goes to the first.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .reuse import grown, has_kernels

__all__ = ["LOAD_WEIGHT", "MOST_REPLICAS", "ROUTINGS", "Replicas"]

ROUTINGS = ("random", "round-robin", "least-loaded", "longest-prefix", "prefix-plus-load")
LOAD_WEIGHT = 0.5
"""How many matched tokens a token computed before is worth to prefix-plus-load."""
MOST_REPLICAS = 64
_SCORED = {"least-loaded": 0, "longest-prefix": 1, "prefix-plus-load": 2}
_NO_LIMIT = 1 << 40
_Int64 = npt.NDArray[np.int64]


class Replicas:
    """`replicas` caches of `capacity_blocks` each (None: no limit) under one routing.

    Raises `UsageError` for an unknown routing, and for less than one or more than 64 replicas.
    """

    def __init__(
        self,
        routing: str,
        replicas: int,
        capacity_blocks: int | None,
        block_tokens: int,
        *,
        seed: int = 0,
        compiled: bool | None = None,
    ) -> None:
        if routing not in ROUTINGS:
            raise UsageError(f"routing: {routing!r} is none; write one of {', '.join(ROUTINGS)}")
        if not 1 <= replicas <= MOST_REPLICAS:
            raise UsageError(f"replicas: {replicas} cannot be compared; give 1 to {MOST_REPLICAS}")
        self.routing = routing
        self.replicas = replicas
        self.load = np.zeros(replicas)
        """Tokens that each replica had to compute."""
        self._capacity = _NO_LIMIT if capacity_blocks is None else capacity_blocks
        self._block_tokens = block_tokens
        self._random = np.random.default_rng(seed)
        self._served = 0
        self._compiled = has_kernels() if compiled is None else compiled
        self._unique = 0
        self._masks = np.zeros(0, dtype=np.uint64)
        self._place = np.full((replicas, 0), -1, dtype=np.int32)
        self._owner = np.zeros((replicas, 0), dtype=np.int32)
        self._head = np.zeros(replicas, dtype=np.int64)
        self._tail = np.zeros(replicas, dtype=np.int64)
        self._held = np.zeros(replicas, dtype=np.int64)
        self._caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._holders: dict[int, int] = {}

    def send(self, offsets: _Int64, blocks: _Int64, input_tokens: _Int64) -> tuple[_Int64, _Int64, _Int64]:
        """Serve a chunk of n requests.

        Gives, for each, its replica, the leading blocks that this one held, and the most that any held.
        """
        count = len(offsets) - 1
        picks = np.zeros(count, dtype=np.int64)
        if self.routing == "random":
            picks = self._random.integers(0, self.replicas, count)
        elif self.routing == "round-robin":
            picks = (self._served + np.arange(count)) % self.replicas
        self._served += count
        replica, matched, elsewhere = (np.zeros(count, dtype=np.int64) for _ in range(3))
        if self._compiled:
            from .kernels import route

            self._make_room(blocks)
            route(
                _SCORED.get(self.routing, -1), picks, offsets, blocks, input_tokens, self._block_tokens,
                self._capacity, self._masks, self._place, self._owner, self._head, self._tail, self._held,
                self.load, LOAD_WEIGHT, replica, matched, elsewhere,
            )  # fmt: skip
        else:
            self._walk(picks, offsets, blocks, input_tokens, replica, matched, elsewhere)
        return replica, matched, elsewhere

    def _make_room(self, blocks: _Int64) -> None:
        if len(blocks):
            self._unique = max(self._unique, int(blocks.max()) + 1)
        self._masks = grown(self._masks, self._unique, 0)
        self._place = grown(self._place, self._unique, -1)
        if int(self._tail.max()) + len(blocks) <= self._owner.shape[1]:
            return
        owner = np.zeros(
            (self.replicas, max(1 << 14, 2 * (int(self._held.max()) + len(blocks)))), dtype=np.int32
        )
        for r in range(self.replicas):
            queue = self._owner[r, self._head[r] : self._tail[r]]
            queue = queue[queue >= 0]
            owner[r, : len(queue)] = queue
            self._place[r, queue] = np.arange(len(queue))
            self._head[r], self._tail[r] = 0, len(queue)
        self._owner = owner

    def _walk(
        self,
        picks: _Int64,
        offsets: _Int64,
        blocks: _Int64,
        input_tokens: _Int64,
        replica: _Int64,
        matched: _Int64,
        elsewhere: _Int64,
    ) -> None:
        size, load, holders = self._block_tokens, self.load, self._holders
        everyone = (1 << self.replicas) - 1
        kind = _SCORED.get(self.routing, -1)
        for request in range(len(offsets) - 1):
            asked = blocks[offsets[request] : offsets[request + 1]].tolist()
            length = int(input_tokens[request])
            match = [0] * self.replicas
            alive = everyone
            depth = 0
            for block in asked:
                still = alive & holders.get(block, 0)
                if still != alive:
                    _note(match, alive & ~still, depth)
                    alive = still
                    if not alive:
                        break
                depth += 1
            _note(match, alive, depth)
            hits = [float(min(m * size, length)) for m in match]
            chosen = 0
            if kind < 0:
                chosen = int(picks[request])
            else:
                scores = [
                    -load[r] if kind == 0 else hits[r] - (LOAD_WEIGHT * load[r] if kind == 2 else 0.0)
                    for r in range(self.replicas)
                ]
                chosen = max(range(self.replicas), key=lambda r: (scores[r], -load[r], -r))
            replica[request], matched[request], elsewhere[request] = chosen, match[chosen], max(match)
            load[chosen] += length - hits[chosen]
            self._use(chosen, asked)

    def _use(self, chosen: int, asked: list[int]) -> None:
        cache, holders, bit = self._caches[chosen], self._holders, 1 << chosen
        for block in reversed(asked):
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(cache) > self._capacity:
            block, _ = cache.popitem(last=False)
            holders[block] &= ~bit


def _note(match: list[int], replicas: int, depth: int) -> None:
    while replicas:
        low = replicas & -replicas
        match[low.bit_length() - 1] = depth
        replicas ^= low
