"""How a long run of blocks is cut, so that a cancellation or a deadline is noticed between two pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["BATCH_BYTES", "batches", "runs"]

BATCH_BYTES = 16 << 20
"""About what one piece moves: long enough for one round trip not to matter, short enough to stop soon."""


def batches(start: int, stop: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """`[start, stop)` in pieces of about `BATCH_BYTES`, of one block at least."""
    step = max(1, BATCH_BYTES // max(1, block_bytes))
    for at in range(start, stop, step):
        yield at, min(at + step, stop)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Growing numbers as runs `[start, stop)`."""
    at = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[at], numbers[i - 1] + 1
            at = i
