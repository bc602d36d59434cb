"""SGLang: one pool of tokens; two where windows slide; slots for states.

Owns its counts. A model with windows gets a full pool and a sliding pool whose tokens stand in a fixed ratio
(swa_full_tokens_ratio); one with states gets a pool of slots, one more than asked for. Pools are whole pages.
SGLang writes GB and means GiB.

Source: SGLang, `model_executor/model_runner.py` and `mem_cache/memory_pool.py`.
"""

from __future__ import annotations

from ...units import GIB
from ..layers import Model
from .contract import Capacity, Pool
from .kept import Kept, Rules
from .placed import Placed
from .setup import Setup

__all__ = ["SglangLayout"]

_RULES = Rules(sharing=False, matrix_dtype="float32")


class SglangLayout:
    """SGLang's layout of a model."""

    def __init__(self, model: Model, setup: Setup) -> None:
        self._setup = setup
        placed = Placed(model, setup, _RULES)
        self.kept: list[Kept] = placed.kept
        self.stages = placed.stages
        self._fullest = placed.fullest
        self.block_tokens = setup.block_tokens or 1
        self.notes: list[str] = []
        if any(layer.shares is not None for layer in model.layers) and setup.sharing is None:
            self.notes.append(
                "layers that share a cache have one each here; --shared if this build uses sharing"
            )
        self._full = self._fullest(lambda one: one.growing_bytes)
        self._sliding = self._fullest(lambda one: 0 if one.window is None else one.token_bytes)
        self._state = self._fullest(lambda one: one.state_bytes)
        self._slides = any(one.window is not None for one in self.kept)
        self.bytes_per_block = (self._full + self._sliding) * self.block_tokens
        self.bytes_per_block_total = sum(one.token_bytes for one in self.kept) * self.block_tokens * setup.tp
        self.pools = self._pools()

    def _pools(self) -> list[Pool]:
        block = self.block_tokens
        found = []
        if full := sum(one.growing_bytes > 0 for one in self.kept):
            found.append(Pool(name="full", layers=full, block_tokens=block))
        if sliding := [one for one in self.kept if one.window is not None]:
            found.append(
                Pool(name="sliding", layers=len(sliding), block_tokens=block, window=sliding[0].window)
            )
        if states := sum(one.state_bytes > 0 for one in self.kept):
            found.append(Pool(name="state", layers=states, block_tokens=1, page_bytes=self._state // states))
        return found

    def _paged(self, tokens: int) -> int:
        return tokens // self.block_tokens * self.block_tokens

    def slots(self, memory_bytes: int) -> int:
        """Requests whose states are held: as many as were asked for, or as the memory's share allows."""
        if not self._state:
            return 0
        if self._setup.sequences is not None:
            return self._setup.sequences
        ratio = self._setup.state_share
        return int(memory_bytes * ratio / (1 + ratio)) // self._state

    def pool_tokens(self, memory_bytes: int) -> tuple[int, int]:
        """Tokens of the full and of the sliding pool."""
        left = memory_bytes
        if self._state:
            left -= (self.slots(memory_bytes) + 1) * self._state
        if not self._slides:
            return (self._paged(max(left, 0) // self._full) if self._full else 0), 0
        ratio = self._setup.window_ratio
        if not self._full:
            return 0, self._paged(max(left, 0) // self._sliding)
        full = self._paged(int(max(left, 0) / (self._full + ratio * self._sliding)))
        return full, self._paged(int(full * ratio))

    def pool_bytes(self, full_tokens: int, sliding_tokens: int) -> int:
        """Bytes of two pools of these sizes on the fullest rank."""
        return full_tokens * self._full + sliding_tokens * self._sliding

    def reserved_bytes(self, context: int) -> int:
        tokens = self._paged(context + self.block_tokens - 1)
        windows = self._fullest(lambda one: min(context, one.window or 0) * one.token_bytes)
        return tokens * self._full + windows + self._state

    def capacity(self, memory_bytes: int, context: int | None) -> Capacity:
        full, sliding = self.pool_tokens(memory_bytes)
        tokens = full or sliding
        return Capacity(
            blocks=tokens // self.block_tokens,
            tokens=tokens,
            max_concurrency=None if context is None else tokens / context,
            longest_context=tokens if self._full else None,
            blocks_per_request=None if context is None else -(-context // self.block_tokens),
        )

    def lines(self, memory_bytes: int | None, context: int | None) -> list[str]:
        if memory_bytes is None:
            return []
        found = []
        if self._state:
            slots = self.slots(memory_bytes)
            conv = self._fullest(lambda one: one.conv_bytes) * (slots + 1)
            matrix = self._state * (slots + 1) - conv
            found.append(
                f"Mamba Cache is allocated. max_mamba_cache_size: {slots}, "
                f"conv_state size: {conv / GIB:.2f}GB, ssm_state size: {matrix / GIB:.2f}GB"
            )
        full, sliding = self.pool_tokens(memory_bytes)
        if self._slides and self._full:
            size = self.pool_bytes(full, sliding) / GIB
            found.append(f"SWAKVPool mem usage: {size:.2f} GB, swa size: {sliding}, full size: {full}")
        else:
            tokens = full or sliding
            keys = self._fullest(lambda one: one.key_bytes) * tokens / GIB
            values = self._fullest(lambda one: one.value_bytes) * tokens / GIB
            parts = f"K size: {keys:.2f} GB, V size: {values:.2f} GB" if values else f"KV size: {keys:.2f} GB"
            found.append(f"KV Cache is allocated. #tokens: {tokens}, {parts}")
        return found
