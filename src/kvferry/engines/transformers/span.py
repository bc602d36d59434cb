"""The KV of one running request: one preallocated tensor that attention reads in place.

Appending copies only the new tokens. The whole of a request's KV is [layer, K or V, KV head, token, width],
so that a block of the arena is copied in or out with one strided copy.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .layout import KvLayout

__all__ = ["Span"]


class _SpanLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its __init_subclass__ is untyped
    """One layer's window on a span, in the shape that transformers asks for."""

    is_sliding = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, store: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.length = 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("a span has its memory from the start")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        self.store[0, :, self.length : end] = key_states[0]
        self.store[1, :, self.length : end] = value_states[0]
        self.length = end
        return self.store[0, :, :end].unsqueeze(0), self.store[1, :, :end].unsqueeze(0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return int(self.store.shape[2])


class Span(Cache):
    """Room for `capacity` tokens of one request, filled from the front; `length` tokens are in it.

    The pages are touched only as they are filled, so a generous capacity costs address space alone.
    """

    def __init__(self, layout: KvLayout, capacity: int) -> None:
        self.capacity = capacity
        self.kv = torch.empty((layout.layers, 2, layout.kv_heads, capacity, layout.width), dtype=layout.dtype)
        self._parts = [_SpanLayer(self.kv[layer]) for layer in range(layout.layers)]
        super().__init__(layers=list(self._parts))

    @property
    def length(self) -> int:
        return self._parts[0].length

    @length.setter
    def length(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise ValueError(f"a span of {self.capacity} tokens cannot hold {tokens}")
        for part in self._parts:
            part.length = tokens
