"""The same requests under several routings, and what one shared pool adds to the best of them.

Owns the comparison: for each routing its hits, its misses by cause, how uneven it is, and what a pool would
have held behind each replica's own hit, by class and length. A pool's gain is told against the best local
routing; against random routing it would look several times larger, and prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .causes import CauseCount
from .replicas import ROUTINGS, Replicas
from .result import LengthBin, PoolGain, Routing, Sharing
from .touched import Touched

__all__ = ["RoutingCount"]

_Int64 = npt.NDArray[np.int64]
_LENGTHS = 40
"""Bins of remote tokens, one an octave."""
_MOST_UNEVEN = 2.0


class RoutingCount:
    """Every routing over the same requests, and a pool of `pool_blocks` (None: no limit) beside them."""

    def __init__(
        self,
        replicas: int,
        capacity_blocks: int | None,
        pool_blocks: int | None,
        block_tokens: int,
        *,
        routings: Sequence[str] = ROUTINGS,
        seed: int = 0,
        compiled: bool | None = None,
    ) -> None:
        self._block_tokens = block_tokens
        self._pool_blocks = pool_blocks
        self._input_tokens = 0
        self._pool_tokens = 0
        self._runs = {
            name: _Run(Replicas(name, replicas, capacity_blocks, block_tokens, seed=seed, compiled=compiled))
            for name in routings
        }

    def add(self, touched: Touched, classes: _Int64) -> None:
        """Serve a chunk under every routing; (n,) class of each request."""
        size = self._block_tokens
        pool = touched.matched_within(self._pool_blocks)
        self._input_tokens += int(touched.input_tokens.sum())
        self._pool_tokens += int(np.minimum(pool * size, touched.input_tokens).sum())
        for run in self._runs.values():
            run.add(touched, classes, pool, size)

    @property
    def best(self) -> str:
        """The routing with the most hits by token, of those that spread the work.

        One that sends nearly everything to one replica has its hits on paper only: its busiest replica may
        compute at most twice its even share, unless no routing keeps to that.
        """
        even = {name: run for name, run in self._runs.items() if run.is_even} or self._runs
        return max(even, key=lambda name: even[name].hit_tokens)

    def results(self) -> dict[str, Routing]:
        """Every routing's figures."""
        return {name: run.result(self._input_tokens) for name, run in self._runs.items()}

    def pool_gain(self, bytes_per_token: float | None) -> PoolGain:
        """One shared pool against the best local routing."""
        whole = max(1, self._input_tokens)
        best = self._runs[self.best].hit_tokens
        random = self._runs["random"].hit_tokens
        tokens = None if self._pool_blocks is None else self._pool_blocks * self._block_tokens
        return PoolGain(
            best_local=self.best,
            best_local_hit_by_token=best / whole,
            pool_capacity_bytes=None
            if tokens is None or bytes_per_token is None
            else round(tokens * bytes_per_token),
            pool_capacity_tokens=tokens,
            pool_hit_by_token=self._pool_tokens / whole,
            ratio=self._pool_tokens / best if best else None,
            against_random=self._pool_tokens / random if random else None,
        )

    def sharing(self) -> dict[int, Sharing]:
        """What the pool adds to each class under the best local routing."""
        return self._runs[self.best].sharing()


class _Run:
    """One routing."""

    def __init__(self, replicas: Replicas) -> None:
        self.hit_tokens = 0
        self._useful_tokens = 0
        self._replicas = replicas
        self._causes = CauseCount()
        self._local = np.zeros(0, dtype=np.int64)
        self._computed = np.zeros((2, 0))
        """Tokens behind the replica's own hits, and their pairs, by class."""
        self._lengths = np.zeros((3, 0))
        """Requests, remote tokens and pairs, by class and length."""

    def add(self, touched: Touched, classes: _Int64, pool: _Int64, size: int) -> None:
        _, held, anywhere = self._replicas.send(touched.offsets, touched.blocks, touched.input_tokens)
        self._causes.add(touched, held, anywhere)
        self.hit_tokens += int(np.minimum(held * size, touched.input_tokens).sum())
        local = np.minimum(held, touched.full_blocks) * size
        self._useful_tokens += int(local.sum())
        remote = np.maximum(0, np.minimum(pool, touched.full_blocks) * size - local)
        count = int(classes.max(initial=-1)) + 1
        if count > len(self._local):
            more = max(count, 2 * len(self._local))
            self._local = np.concatenate([self._local, np.zeros(more - len(self._local), dtype=np.int64)])
            lengths = np.zeros((3, more * _LENGTHS))
            lengths[:, : self._lengths.shape[1]] = self._lengths
            self._lengths = lengths
            self._computed = np.hstack([self._computed, np.zeros((2, more - self._computed.shape[1]))])
        width = len(self._local)
        self._local += np.bincount(classes, weights=local, minlength=width).astype(np.int64)
        rest = (touched.input_tokens - local).astype(np.float64)
        for row, weights in enumerate((rest, rest * (local + rest / 2))):
            self._computed[row] += np.bincount(classes, weights=weights, minlength=width)
        some = remote > 0
        tokens = remote[some].astype(np.float64)
        cell = classes[some] * _LENGTHS + np.minimum(_LENGTHS - 1, np.log2(tokens)).astype(np.int64)
        pairs = tokens * (local[some] + tokens / 2)
        for row, weights in enumerate((np.ones(len(tokens)), tokens, pairs)):
            self._lengths[row] += np.bincount(cell, weights=weights, minlength=width * _LENGTHS)

    @property
    def is_even(self) -> bool:
        load = self._replicas.load
        return float(load.max()) * len(load) <= _MOST_UNEVEN * float(load.sum())

    def result(self, input_tokens: int) -> Routing:
        load = self._replicas.load
        return Routing(
            hit_by_token=self.hit_tokens / max(1, input_tokens),
            hit_useful_tokens=self._useful_tokens / max(1, input_tokens),
            busiest_share=float(load.max() / load.sum()) if load.sum() else 1.0 / len(load),
            misses=self._causes.misses(),
        )

    def sharing(self) -> dict[int, Sharing]:
        found = {}
        for number, local in enumerate(self._local.tolist()):
            rows = self._lengths[:, number * _LENGTHS : (number + 1) * _LENGTHS]
            lengths = tuple(
                LengthBin(requests=int(n), remote_tokens=int(tokens), pair_tokens=float(pairs))
                for n, tokens, pairs in rows.T.tolist()
                if n
            )
            found[number] = Sharing(
                local_tokens=local,
                remote_tokens=sum(one.remote_tokens for one in lengths),
                remote_requests=sum(one.requests for one in lengths),
                lengths=lengths,
                computed_tokens=int(self._computed[0, number]),
                computed_pair_tokens=float(self._computed[1, number]),
            )
        return found
