"""S3-FIFO (Yang et al., SOSP 2023): most keys are used once, so newcomers are on probation.

A newcomer enters a small queue of a tenth of the bytes. When it reaches the end, it moves to the main queue
if it was used more than once meanwhile, and goes otherwise; its key is remembered as a ghost, and a ghost
that comes back enters the main queue at once. In the main queue a used key is given another round for each
use, of which at most three are counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["S3FIFO"]

_SMALL_SHARE = 0.1
_MOST_USES = 3


class _Queue:
    """Keys in the order of their coming, with their sizes."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[bytes, int] = OrderedDict()
        self.total_bytes = 0

    def push(self, key: bytes, size: int) -> None:
        self.sizes[key] = size
        self.total_bytes += size

    def take(self, key: bytes) -> int:
        size = self.sizes.pop(key)
        self.total_bytes -= size
        return size


class S3FIFO:
    """An `EvictionPolicy`: a small queue for newcomers, a main one, as many ghosts as there are keys."""

    def __init__(self) -> None:
        self._small, self._main = _Queue(), _Queue()
        self._uses: dict[bytes, int] = {}
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes, value_bytes: int, worth_seconds: float | None, child: bytes | None) -> None:
        queue = self._small
        if key in self._ghosts:
            del self._ghosts[key]
            queue = self._main
        queue.push(key, value_bytes)
        self._uses[key] = 0

    def touch(self, key: bytes, child: bytes | None) -> None:
        self._uses[key] = min(_MOST_USES, self._uses[key] + 1)

    def remove(self, key: bytes) -> None:
        del self._uses[key]
        if key in self._main.sizes:
            self._main.take(key)
            return
        self._small.take(key)
        self._ghosts[key] = None
        while len(self._ghosts) > len(self._uses) + 1:
            self._ghosts.popitem(last=False)

    def choose(self, kept: Callable[[bytes], bool]) -> bytes | None:
        # Each key is passed at most once as a newcomer and once for each of its uses, and once more to be
        # sure that all that is left is kept.
        for _ in range((_MOST_USES + 2) * len(self._uses)):
            small = self._small
            crowded = small.total_bytes >= _SMALL_SHARE * (small.total_bytes + self._main.total_bytes)
            queue = small if small.sizes and (crowded or not self._main.sizes) else self._main
            key = next(iter(queue.sizes))
            stays = kept(key)
            if queue is small:
                if not stays and self._uses[key] <= 1:
                    return key
                # A key that others continue has proved itself as well.
                self._uses[key] = 0
            elif stays or self._uses[key]:
                self._uses[key] = max(0, self._uses[key] - 1)
            else:
                return key
            self._main.push(key, queue.take(key))
        return None
