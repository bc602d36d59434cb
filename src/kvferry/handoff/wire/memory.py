"""Where the KV of a hand-off lies: rows that are read on one side and filled on the other.

Owns the contract of both sides and the one for host memory, which moves nothing: its rows are the engine's
own memory, so that raw KV goes from there to the socket and back without a copy. `device.py` has the one
that copies. Refuses to know codecs and messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["HostKv", "KvMemory", "Rows", "copy_rows"]

Rows = Sequence[memoryview]
"""[K or V, KV head]: one byte view of a head's tokens each, contiguous."""


class KvMemory(Protocol):
    """One request's KV. Used by one thread at a time on each side."""

    @property
    def copies(self) -> bool:
        """Whether `read` and `filled` copy to or from a device."""

    def read(self, layer: int, start: int, stop: int) -> Rows:
        """The bytes of these tokens, until the next call."""

    def room(self, layer: int, start: int, stop: int) -> Rows:
        """Where the bytes of these tokens are to be put, until the next call."""

    def filled(self, layer: int, start: int, stop: int) -> None:
        """What `room` gave holds verified bytes: make them the engine's."""


class HostKv:
    """KV in host memory: uint8 [layers, 2, KV heads, capacity, bytes of a head's token]."""

    copies = False

    def __init__(self, kv: NDArray[np.uint8], first: int = 0) -> None:
        if kv.ndim != 5 or kv.shape[1] != 2 or kv.dtype != np.uint8 or not kv[0, 0, 0].flags.c_contiguous:
            raise ValueError(f"KV of shape {kv.shape} and type {kv.dtype}: its heads are no rows of bytes")
        self._kv = kv
        self._first = first

    @classmethod
    def of_tensor(cls, kv: Any, first: int = 0) -> HostKv:
        """Of a CPU tensor [layers, 2, KV heads, capacity, width]; `first` is where position 0 lies."""
        import torch

        return cls(kv.view(torch.uint8).numpy(), first)

    def read(self, layer: int, start: int, stop: int) -> Rows:
        return self.room(layer, start, stop)

    def room(self, layer: int, start: int, stop: int) -> Rows:
        at = slice(self._first + start, self._first + stop)
        return [head[at].reshape(-1).data for part in self._kv[layer] for head in part]

    def filled(self, layer: int, start: int, stop: int) -> None:
        pass


def copy_rows(rows: Rows, block: memoryview, *, back: bool = False) -> None:
    """Rows end to end into `block`, or `back` from it into the rows."""
    at = 0
    for row in rows:
        if back:
            row[:] = block[at : at + row.nbytes]
        else:
            block[at : at + row.nbytes] = row
        at += row.nbytes
