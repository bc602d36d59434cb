"""KV on a device: every chunk passes through pinned host memory, and the copy is a leg of its own.

Reading copies K and V of a chunk to the host in one strided copy, installing the other way round; both wait
for the copy, since what comes next touches the bytes. Two staging buffers, so that one chunk may still be
on the wire while the next is copied.
"""

from __future__ import annotations

from typing import Any

from ...errors import MissingExtra
from .memory import Rows

__all__ = ["DeviceKv"]


class DeviceKv:
    """A tensor [layers, 2, KV heads, capacity, width] on a device."""

    copies = True

    def __init__(self, kv: Any, chunk_tokens: int, first: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("a hand-off of a device's KV", "transformers") from error
        self._torch = torch
        self._kv = kv
        self._first = first
        shape = (2, kv.shape[2], chunk_tokens, kv.shape[4])
        pinned = kv.device.type == "cuda"
        self._staging = [torch.empty(shape, dtype=kv.dtype, pin_memory=pinned) for _ in range(2)]
        self._turn = 0
        self._filling: dict[tuple[int, int], int] = {}

    def read(self, layer: int, start: int, stop: int) -> Rows:
        staged = self._next(stop - start)
        staged.copy_(self._of(layer, start, stop))
        return self._rows(staged)

    def room(self, layer: int, start: int, stop: int) -> Rows:
        staged = self._next(stop - start)
        self._filling[layer, start] = self._turn
        return self._rows(staged)

    def filled(self, layer: int, start: int, stop: int) -> None:
        staged = self._staging[self._filling.pop((layer, start))]
        self._of(layer, start, stop).copy_(staged[:, :, : stop - start])

    def _next(self, tokens: int) -> Any:
        self._turn ^= 1
        return self._staging[self._turn][:, :, :tokens]

    def _of(self, layer: int, start: int, stop: int) -> Any:
        return self._kv[layer, :, :, self._first + start : self._first + stop]

    def _rows(self, staged: Any) -> Rows:
        data = staged.view(self._torch.uint8).numpy()
        return [head.reshape(-1).data for part in data for head in part]
