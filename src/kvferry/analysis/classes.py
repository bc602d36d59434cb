"""Prefixes by class: how much each asks for, how often and how soon it comes back, what is never read.

A class is a root of the block tree (prompts that begin with the same block, or blocks), or a field that the
trace carries. Owns which request and which block is of which class. With roots, at most `MOST_CLASSES` are
told apart, in order of appearance, so that memory does not grow with one-off prompts; the result names the
largest, and one row holds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .intervals import Intervals
from .published import PUBLICATION_POLICIES, PublicationCount
from .result import ClassResult, Publication, Sharing
from .reuse import grown
from .touched import Touched

__all__ = ["MOST_CLASSES", "MOST_SHOWN", "OTHERS", "ClassCount"]

_Int64 = npt.NDArray[np.int64]
MOST_CLASSES = 4_096
MOST_SHOWN = 20
OTHERS = "others"
_TTL_SHARE = 0.99


class ClassCount:
    """Counts by class; number 0 is what belongs to none: `others`."""

    def __init__(self, root_blocks: int = 1) -> None:
        self._root_blocks = root_blocks
        self.intervals = Intervals()
        self.published = PublicationCount()
        self._class_of_block: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._full: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._roots: list[int] = [-1]
        self._unique = 0
        self._sums = np.zeros((5, 1), dtype=np.int64)
        """Requests, input, hit, useful and unique tokens, by class."""

    def add(self, touched: Touched, field: npt.NDArray[np.int32] | None, unique_blocks: int) -> _Int64:
        """Take a chunk; `field` are label numbers (n, -1: none), or None for roots. Gives classes (n)."""
        self._class_of_block = grown(self._class_of_block, unique_blocks, 0)
        self._full = grown(self._full, unique_blocks, 0)
        classes = self._by_root(touched) if field is None else field.astype(np.int64) + 1
        count = max(int(classes.max(initial=0)) + 1, len(self._roots))
        self._sums = grown(self._sums, count, 0)
        # Ids come in order of first appearance, so new ones are above the old; backwards, the first wins.
        fresh = touched.blocks >= self._unique
        blocks, request = touched.blocks[fresh][::-1], touched.request[fresh][::-1]
        self._class_of_block[blocks] = classes[request]
        self._full[touched.blocks[touched.full]] = True
        self._unique = unique_blocks
        first, where = np.unique(touched.blocks[fresh], return_index=True)
        new_tokens = touched.tokens[fresh][where]
        width = self._sums.shape[1]
        rows = (
            np.bincount(classes, minlength=width),
            np.bincount(classes, weights=touched.input_tokens, minlength=width),
            np.bincount(classes, weights=touched.matched_tokens, minlength=width),
            np.bincount(classes, weights=touched.useful_tokens, minlength=width),
            np.bincount(self._class_of_block[first], weights=new_tokens, minlength=width),
        )
        for row, values in enumerate(rows):
            self._sums[row] += values.astype(np.int64)
        again = touched.depth > 0
        self.intervals.add(
            classes[touched.request[again]], np.maximum(touched.age[again], 0.0), touched.tokens[again]
        )
        self.published.add(touched, classes, unique_blocks)
        return classes

    def _by_root(self, touched: Touched) -> _Int64:
        offsets = touched.offsets
        classes = np.zeros(len(touched.matched), dtype=np.int64)
        asking = np.flatnonzero(np.diff(offsets) > 0)
        deep = np.minimum(self._root_blocks, np.diff(offsets)[asking]) - 1
        roots = touched.blocks[offsets[asking] + deep]
        fresh = roots[roots >= self._unique]
        _, at = np.unique(fresh, return_index=True)
        for root in fresh[np.sort(at)].tolist():
            if len(self._roots) > MOST_CLASSES:
                break
            self._class_of_block[root] = len(self._roots)
            self._roots.append(root)
        classes[asking] = self._class_of_block[roots]
        return classes

    @property
    def unique_tokens(self) -> int:
        """Tokens of all different blocks."""
        return int(self._sums[4].sum())

    def names(self, labels: Sequence[str] | None) -> list[str]:
        """The name of each class number; `labels` of the field, or None for roots."""
        if labels is None:
            return [OTHERS, *(f"root {root}" for root in self._roots[1:])]
        return ["(none)", *labels]

    def results(
        self,
        uses: npt.NDArray[np.int32],
        labels: Sequence[str] | None,
        block_tokens: int,
        sharing: Mapping[int, Sharing],
    ) -> tuple[ClassResult, ...]:
        """The largest classes by input tokens, the rest summed up as `others` where there are more."""
        names = self.names(labels)
        sums = self._sums[:, : len(names)]
        order = [int(c) for c in np.argsort(-sums[1], kind="stable") if sums[0, c]]
        shown = order if len(order) <= MOST_SHOWN else [c for c in order[: MOST_SHOWN - 1] if c]
        rest = [c for c in order if c not in set(shown)]
        group = np.full(len(names), len(shown), dtype=np.int64)
        group[shown] = np.arange(len(shown))
        groups = len(shown) + 1
        of_block = group[self._class_of_block[: self._unique]]
        uses = uses[: self._unique]
        once = self._full[: self._unique] & (uses == 1)
        unread = np.bincount(of_block[once], minlength=groups) * block_tokens
        policies = {
            name: self.published.of(name, self._class_of_block[: self._unique], len(names))
            for name in PUBLICATION_POLICIES
        }
        total = int(sums[1].sum())
        found = []
        for number, members in enumerate([*([c] for c in shown), rest]):
            if not members:
                continue
            requests, tokens, hit, useful, unique = (int(row[members].sum()) for row in sums)
            single = members[0] if len(members) == 1 else None
            found.append(
                ClassResult(
                    name=names[single] if single is not None else OTHERS,
                    requests=requests,
                    input_tokens=tokens,
                    token_share=tokens / total if total else 0.0,
                    hit_by_token=hit / tokens if tokens else 0.0,
                    hit_useful_tokens=useful / tokens if tokens else 0.0,
                    unique_tokens=unique,
                    top_tenth_share=_top_tenth(uses[of_block == number]),
                    interval_p50_seconds=self.intervals.quantile_of(members, 0.5),
                    interval_p95_seconds=self.intervals.quantile_of(members, 0.95),
                    ttl_seconds=self.intervals.quantile_of(members, _TTL_SHARE),
                    never_read_tokens=int(unread[number]),
                    publication=tuple(
                        Publication(
                            policy=name,
                            written_tokens=int(written[members].sum()),
                            served_tokens=int(served[members].sum()),
                            never_read_tokens=int(never[members].sum()),
                        )
                        for name, (written, served, never) in policies.items()
                    ),
                    sharing=_joined([sharing[c] for c in members if c in sharing]) if sharing else None,
                )
            )
        return tuple(found)


def _top_tenth(uses: npt.NDArray[np.int32]) -> float | None:
    again = np.sort(uses.astype(np.int64) - 1)[::-1]
    total = int(again.sum())
    return float(again[: max(1, -(-len(again) // 10))].sum() / total) if total else None


def _joined(parts: list[Sharing]) -> Sharing:
    return Sharing(
        local_tokens=sum(part.local_tokens for part in parts),
        remote_tokens=sum(part.remote_tokens for part in parts),
        remote_requests=sum(part.remote_requests for part in parts),
        lengths=tuple(length for part in parts for length in part.lengths),
        computed_tokens=sum(part.computed_tokens for part in parts),
        computed_pair_tokens=sum(part.computed_pair_tokens for part in parts),
    )
