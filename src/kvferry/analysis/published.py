"""What each publication policy would have written, what of it would have been served, and what nobody read.

The rules of the gate, over a whole trace: permission first (only full blocks before a declared boundary),
then policy: never, declared (only requests that state a boundary), second-touch (blocks that a permitted
request had asked for before), all. A block is served to every later request that reaches it. Pools forget
nothing here.

Per block, the number of the request that published it says everything: what comes later is served.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .reuse import grown
from .touched import Touched

__all__ = ["PUBLICATION_POLICIES", "PublicationCount"]

_Int64 = npt.NDArray[np.int64]
PUBLICATION_POLICIES = ("never", "declared", "second-touch", "all")
_LEARNED = PUBLICATION_POLICIES[1:]
_NOT_YET = np.iinfo(np.int64).max


class PublicationCount:
    """When each block was published under each policy, and who read it."""

    def __init__(self) -> None:
        self._asked: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        """Permitted requests that asked for a block."""
        self._published = {name: np.zeros(0, dtype=np.int64) for name in _LEARNED}
        self._read = {name: np.zeros(0, dtype=np.bool_) for name in _LEARNED}
        self._served = {name: np.zeros(0, dtype=np.int64) for name in _LEARNED}
        self._block_tokens = 0

    def add(self, touched: Touched, classes: _Int64, unique_blocks: int) -> None:
        """Take a chunk; (n,) class of each request."""
        self._block_tokens = touched.block_tokens
        self._asked = grown(self._asked, unique_blocks, 0)
        for name in _LEARNED:
            self._published[name] = grown(self._published[name], unique_blocks, _NOT_YET)
            self._read[name] = grown(self._read[name], unique_blocks, 0)
        full = touched.full
        blocks, request = touched.blocks[full], touched.request[full]
        number = np.arange(len(touched.blocks)) - np.repeat(touched.offsets[:-1], np.diff(touched.offsets))
        boundary = touched.boundary_tokens[request]
        declared = boundary >= 0
        permitted = ~declared | ((number[full] + 1) * touched.block_tokens <= boundary)
        earlier = self._rank(blocks, permitted)
        when = request + touched.first_request
        self._publish("all", blocks, when, permitted & (earlier == 0))
        self._publish("second-touch", blocks, when, permitted & (earlier == 1))
        self._publish("declared", blocks, when, permitted & declared)
        for name in _LEARNED:
            read = self._published[name][blocks] < when
            self._read[name][blocks[read]] = True
            counts = np.bincount(classes[request[read]])
            served = grown(self._served[name], len(counts), 0)
            served[: len(counts)] += counts
            self._served[name] = served

    def of(self, policy: str, class_of_block: npt.NDArray[np.int32], classes: int) -> tuple[_Int64, ...]:
        """(written, served, never read) tokens of each class under a policy."""
        none = np.zeros(classes, dtype=np.int64)
        if policy == "never":
            return none, none, none
        count = len(class_of_block)
        written = self._published[policy][:count] != _NOT_YET
        unread = written & ~self._read[policy][:count]
        served = np.zeros(classes, dtype=np.int64)
        have = min(classes, len(self._served[policy]))
        served[:have] = self._served[policy][:have]
        return (
            np.bincount(class_of_block[written], minlength=classes) * self._block_tokens,
            served * self._block_tokens,
            np.bincount(class_of_block[unread], minlength=classes) * self._block_tokens,
        )

    def _rank(self, blocks: _Int64, permitted: npt.NDArray[np.bool_]) -> _Int64:
        """Permitted requests that had asked for a block before, for each permitted access; and count them."""
        asked = blocks[permitted]
        order = np.argsort(asked, kind="stable")
        ordered = asked[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
        lengths = np.diff(np.append(starts, len(ordered)))
        within = np.arange(len(ordered)) - np.repeat(starts, lengths)
        rank = np.zeros(len(blocks), dtype=np.int64)
        mine = np.empty(len(ordered), dtype=np.int64)
        mine[order] = within + self._asked[ordered]
        rank[permitted] = mine
        if len(ordered):
            self._asked[ordered[starts]] += lengths.astype(np.int32)
        return rank

    def _publish(self, name: str, blocks: _Int64, when: _Int64, now: npt.NDArray[np.bool_]) -> None:
        published = self._published[name]
        # Backwards, so that the earliest of a chunk is the one that stays.
        fresh, at = blocks[now][::-1], when[now][::-1]
        still = published[fresh] == _NOT_YET
        published[fresh[still]] = at[still]
