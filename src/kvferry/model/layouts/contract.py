"""What every layout answers: bytes of a block, of a request, and how much fits into memory.

A number that an engine does not have is None, never a guess.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from .kept import Kept

__all__ = ["Capacity", "Layout", "Pool"]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One buffer that an engine sets apart: a pool of cells or slots, or a group of layers."""

    name: str
    layers: int
    block_tokens: int
    page_bytes: int | None = None
    """One layer's part of a block."""
    padding_layers: int = 0
    window: int | None = None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much fits into a rank's memory, as the engine counts it."""

    blocks: int | None
    tokens: int | None
    """What the engine's log calls its cache's size, in the meaning of the chosen version."""
    tokens_before: int | None = None
    """The same in vLLM's older meaning (up to 0.20): blocks // groups x block size."""
    tokens_after: int | None = None
    """And in its newer one: concurrency x longest context; None without a context."""
    max_concurrency: float | None = None
    """Requests of the longest context that fit at a time; None without a context."""
    longest_context: int | None = None
    """Tokens of the longest single request that fits; None where its length costs nothing."""
    blocks_per_request: int | None = None


class Layout(Protocol):
    """One engine's layout of one model in one deployment."""

    kept: list[Kept]
    """Of every layer, draft layers last."""
    stages: list[range]
    """Layers by pipeline stage."""
    block_tokens: int
    bytes_per_block: int
    """One block over the layers that it covers, on the fullest rank."""
    bytes_per_block_total: int
    """The same on all ranks together."""
    pools: list[Pool]
    notes: list[str]

    def reserved_bytes(self, context: int) -> int:
        """What a rank sets aside for one request of `context` tokens; padding included."""
        ...

    def capacity(self, memory_bytes: int, context: int | None) -> Capacity:
        """What fits into `memory_bytes` on a rank."""
        ...

    def lines(self, memory_bytes: int | None, context: int | None) -> list[str]:
        """What the engine will log about it, as far as it follows from sizes."""
        ...
