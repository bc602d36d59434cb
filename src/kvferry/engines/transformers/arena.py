"""The replica's own prefix cache: one tensor of blocks, who refers to each, and which block hash it holds.

A row is in one of three states: free (no owner, no hash), held (referenced by requests) or kept (no
reference, found by its hash, given up least recently used first). Rows without a hash become free when the
last reference goes; so memory that a late load might still write to is simply held until that is over.

One thread owns the table; the bytes behind `views` may be read and written by others while the rows are
held. Knows nothing of requests or of a shared cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .layout import KvLayout
from .span import Span

__all__ = ["Arena", "RowMemory"]


class Arena:
    """Memory for `num_blocks` blocks, touched once at the start so that no load pays for page faults."""

    def __init__(self, num_blocks: int, layout: KvLayout) -> None:
        if num_blocks < 1:
            raise ValueError(f"an arena needs at least one block of {layout.block_bytes} bytes")
        self.layout = layout
        self.num_blocks = num_blocks
        self.blocks = torch.zeros((num_blocks, *layout.block_shape), dtype=layout.dtype)
        flat = self.blocks.view(num_blocks, -1).view(torch.uint8)
        self._views = [memoryview(row.numpy()) for row in flat]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._row_of: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.evicted_blocks = 0

    @property
    def available(self) -> int:
        """Rows that `reserve` could give now: free, or kept without a reference."""
        return len(self._free) + len(self._kept)

    @property
    def cached(self) -> int:
        """Blocks that can be found by their hash."""
        return len(self._row_of)

    def count(self, hashes: Sequence[bytes]) -> int:
        """How many leading hashes are here, without taking references."""
        found = 0
        for block_hash in hashes:
            if block_hash not in self._row_of:
                break
            found += 1
        return found

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Rows of the longest prefix of `hashes` that is here, each with a reference for the caller."""
        rows = [self._row_of[block_hash] for block_hash in hashes[: self.count(hashes)]]
        self.hold(rows)
        return rows

    def hold(self, rows: Sequence[int]) -> None:
        """One more reference for each row."""
        for row in rows:
            self._references[row] += 1
            self._kept.pop(row, None)

    def reserve(self, count: int) -> list[int] | None:
        """`count` rows for new content, each with a reference; None, and nothing taken, if not that many."""
        if count > self.available:
            return None
        rows = []
        for _ in range(count):
            if self._free:
                row = self._free.pop()
            else:
                row, _ = self._kept.popitem(last=False)
                self._forget(row)
                self.evicted_blocks += 1
            self._references[row] = 1
            rows.append(row)
        return rows

    def insert(self, block_hash: bytes, row: int) -> bool:
        """Let the held `row` be found under `block_hash`; False when another row has that name already."""
        if block_hash in self._row_of:
            return self._row_of[block_hash] == row
        if self._references[row] < 1 or self._hash_of[row] is not None:
            raise ValueError(f"row {row} is not a held row without a name")
        self._row_of[block_hash] = row
        self._hash_of[row] = block_hash
        return True

    def release(self, rows: Sequence[int]) -> None:
        """One reference less for each row. The tail of a prefix is given up before its head."""
        for row in reversed(rows):
            if self._references[row] < 1:
                raise ValueError(f"row {row} was released more often than it was held")
            self._references[row] -= 1
            if self._references[row] == 0:
                if self._hash_of[row] is None:
                    self._free.append(row)
                else:
                    self._kept[row] = None

    def reset(self) -> int:
        """Forget every name; how many there were. Rows that are held keep their content for their owners."""
        forgotten = len(self._row_of)
        for row in list(self._row_of.values()):
            self._forget(row)
        self._free.extend(self._kept)
        self._kept.clear()
        return forgotten

    def views(self, rows: Sequence[int]) -> list[memoryview]:
        """One writable byte view per row, each `layout.block_bytes` long."""
        return [self._views[row] for row in rows]

    def gather(self, rows: Sequence[int], span: Span) -> None:
        """Copy `rows` into the empty span as its first blocks; its length is set accordingly."""
        size = self.layout.block_tokens
        if span.length:
            raise ValueError(f"the span already holds {span.length} tokens")
        for index, row in enumerate(rows):
            span.kv[:, :, :, index * size : (index + 1) * size].copy_(self.blocks[row])
        span.length = len(rows) * size

    def scatter(self, span: Span, start_block: int, rows: Sequence[int]) -> None:
        """Copy the span's blocks from `start_block` on into `rows`."""
        size = self.layout.block_tokens
        if (start_block + len(rows)) * size > span.length:
            raise ValueError(f"the span of {span.length} tokens has no block {start_block + len(rows) - 1}")
        for index, row in enumerate(rows, start_block):
            self.blocks[row].copy_(span.kv[:, :, :, index * size : (index + 1) * size])

    def _forget(self, row: int) -> None:
        block_hash = self._hash_of[row]
        if block_hash is not None:
            del self._row_of[block_hash]
            self._hash_of[row] = None


@dataclass(frozen=True, slots=True)
class RowMemory:
    """Rows of an arena as the memory of a request's blocks, counted from the prompt's first block."""

    arena: Arena
    first_block: int
    rows: tuple[int, ...]

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """One byte view per block of `[start, stop)`; ValueError outside of what was lent."""
        if not self.first_block <= start <= stop <= self.first_block + len(self.rows):
            raise ValueError(
                f"blocks [{start}, {stop}) are not within the lent "
                f"[{self.first_block}, {self.first_block + len(self.rows)})"
            )
        return self.arena.views(self.rows[start - self.first_block : stop - self.first_block])
