"""Engines without pools for windows: every attention layer keeps every token (TensorRT-LLM, LMDeploy), or a
cache object that is as large as what is in it (transformers).

Owns their few differences. TensorRT-LLM and LMDeploy pack tokens in blocks; LMDeploy's int8 and int4 carry
a scale and a zero point of 16 bits a head and token. transformers keeps MLA's latent (releases before 5
kept the expanded heads: `latent=False`), window - 1 tokens, and as many taps as a convolution is wide.
"""

from __future__ import annotations

import msgspec

from ...units import GIB
from ..layers import Model
from .contract import Capacity, Pool
from .kept import Kept, Rules
from .placed import Placed
from .setup import Setup

__all__ = ["FlatLayout"]

_RULES: dict[str, Rules] = {
    "tensorrt-llm": Rules(windows=False, sharing=False),
    "lmdeploy": Rules(windows=False, sharing=False, scale_bytes=4),
    "transformers": Rules(current_tap=True, current_in_window=False, packed_index=False, packed_latent=False),
}
_BLOCKS = {"tensorrt-llm": 32, "lmdeploy": 64, "transformers": 1}


class FlatLayout:
    """The layout of an engine in `_RULES`."""

    def __init__(self, model: Model, setup: Setup) -> None:
        self._setup = setup
        rules = _RULES[setup.engine]
        if not setup.latent:
            rules = msgspec.structs.replace(rules, latent="expanded")
        placed = Placed(model, setup, rules)
        self.kept: list[Kept] = placed.kept
        self.stages = placed.stages
        self._fullest = placed.fullest
        self.block_tokens = setup.block_tokens or _BLOCKS[setup.engine]
        self._growing = self._fullest(lambda one: one.growing_bytes)
        self._token = self._fullest(lambda one: one.token_bytes)
        self._fixed = self._fullest(lambda one: one.fixed_bytes)
        self.bytes_per_block = self._token * self.block_tokens
        self.bytes_per_block_total = sum(one.token_bytes for one in self.kept) * self.block_tokens * setup.tp
        self.notes: list[str] = []
        if setup.engine != "transformers" and any(
            getattr(layer.attention, "window", None) for layer in model.layers
        ):
            self.notes.append(
                "sliding layers are counted as full attention: this engine's pools save nothing here"
            )
        self.pools = [
            Pool(
                name="full",
                layers=sum(one.token_bytes > 0 for one in self.kept),
                block_tokens=self.block_tokens,
            )
        ]

    def reserved_bytes(self, context: int) -> int:
        padded = -(-context // self.block_tokens) * self.block_tokens
        return self._fullest(lambda one: one.at(padded))

    def capacity(self, memory_bytes: int, context: int | None) -> Capacity:
        left = max(0, memory_bytes - self._fixed)
        if not self._growing:
            concurrency = memory_bytes / self._fixed if self._fixed else None
            return Capacity(blocks=None, tokens=None, max_concurrency=concurrency)
        tokens = left // (self._growing * self.block_tokens) * self.block_tokens
        return Capacity(
            blocks=tokens // self.block_tokens,
            tokens=tokens,
            max_concurrency=None if context is None else memory_bytes / self.reserved_bytes(context),
            longest_context=tokens,
            blocks_per_request=None if context is None else -(-context // self.block_tokens),
        )

    def lines(self, memory_bytes: int | None, context: int | None) -> list[str]:
        if self._setup.engine != "tensorrt-llm" or memory_bytes is None:
            return []
        fits = self.capacity(memory_bytes, context)
        if fits.tokens is None:
            return []
        size = fits.tokens * self._growing / GIB
        return [f"Allocated {size:.2f} GiB for max tokens in paged KV cache ({fits.tokens})"]
