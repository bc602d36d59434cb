"""Working memory of the codecs: one set a thread, grown to what was needed and used again.

Codecs work through a block a few layers at a time, so that what they compute with stays in the processor's
cache. Owns the memory and the size of the steps; refuses to know what is computed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import BlockLayout

__all__ = ["STEP_NUMBERS", "Slots", "layer_runs", "scratch"]

STEP_NUMBERS = 1 << 18
"""Most numbers of one step, unless a single layer has more: 1 MiB of float32, about a second-level cache.
Smaller steps cost more in calls than they save in memory traffic."""

_ALIGNMENT = 64


def layer_runs(layout: BlockLayout) -> Iterator[slice]:
    """The layers of a block in even steps of at most `STEP_NUMBERS`."""
    steps = min(layout.layers, -(-layout.numbers // STEP_NUMBERS))
    step = -(-layout.layers // steps)
    for start in range(0, layout.layers, step):
        yield slice(start, min(start + step, layout.layers))


def scratch(name: str, shape: Sequence[int], dtype: Any = np.float32) -> NDArray[Any]:
    """This thread's array called `name`; its content is whatever was left there."""
    count = math.prod(shape)
    held = _mine.arrays.get(name)
    if held is None or held.size < count or held.dtype != dtype:
        held = _mine.arrays[name] = np.empty(count, dtype)
    return held[:count].reshape(shape)


class _Mine(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}


_mine = _Mine()


class Slots:
    """Buffers of `slot_bytes`, as many as a batch needs; each thread has its own.

    They are written once when they are made, so that no transfer pays for page faults.
    """

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._stride = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self._local = threading.local()

    def take(self, count: int) -> list[memoryview]:
        """`count` writable buffers, the caller's until this thread's next call."""
        views: list[memoryview] = getattr(self._local, "views", [])
        if len(views) < count:
            whole = np.full(count * self._stride, 1, np.uint8)
            starts = range(0, count * self._stride, self._stride)
            self._local.views = views = [whole[at : at + self._slot_bytes].data for at in starts]
        return views[:count]
