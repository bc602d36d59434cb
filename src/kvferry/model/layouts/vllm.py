"""vLLM: blocks of pages, shared by groups of layers.

Owns the counts that vLLM makes at start-up: blocks in memory, blocks of a request, concurrency, and both
meanings of its line "GPU KV cache size" (up to 0.20 blocks // groups x block size; since 0.21 concurrency x
longest context). Capacity is the least over the pipeline's stages.
"""

from __future__ import annotations

import msgspec

from ...errors import UsageError
from ...units import GIB
from ..layers import Model
from .contract import Capacity, Pool
from .grouping import Group, grouped, is_uniform
from .kept import Kept, Rules
from .pages import Page, pages_of, unified
from .placed import Placed
from .setup import Setup

__all__ = ["VllmLayout"]

_RULES = Rules()
_NEW_MEANING = (0, 21)
_BATCH_TOKENS = 8192
"""vLLM's default for a server on a large GPU; elsewhere it is 2,048."""


class VllmLayout:
    """vLLM's layout of a model. Raises `UsageError` and `ModelError` for what it would refuse."""

    def __init__(self, model: Model, setup: Setup) -> None:
        self._model, self._setup = model, setup
        self.notes: list[str] = []
        # Without the hybrid manager windows are computed, but every token keeps its blocks.
        rules = _RULES if setup.hybrid else msgspec.structs.replace(_RULES, windows=False)
        placed = Placed(model, setup, rules)
        self.kept: list[Kept] = placed.kept
        self.stages = placed.stages
        self._pages = pages_of(model, setup, self.kept)
        self._group()
        self._check()
        self._stage_bytes = [self._bytes_of(stage) for stage in self.stages]
        self.bytes_per_block = max(self._stage_bytes)
        self.bytes_per_block_total = sum(self._stage_bytes) * setup.tp

    def _group(self) -> None:
        buckets: dict[Page, list[int]] = {}
        for index, pages in enumerate(self._pages):
            for page in pages:
                buckets.setdefault(page, []).append(index)
        self._uniform = not buckets or is_uniform(list(buckets))
        self._size = 0
        if self._uniform:
            self.groups = [Group(page, tuple(layers)) for page, layers in buckets.items()]
        else:
            alike = unified(set(buckets), self._model.source)
            merged: dict[Page, list[int]] = {}
            for page, layers in buckets.items():
                merged.setdefault(alike[page], []).extend(layers)
            self._size, self.groups = grouped({page: sorted(layers) for page, layers in merged.items()})
        self.block_tokens = min((group.page.block_tokens for group in self.groups), default=1)
        self._tables = [self.groups[0]] if self._uniform and self.groups else self.groups
        self.pools = [_pool(group) for group in self.groups]

    def _check(self) -> None:
        slides = any(group.page.window is not None for group in self.groups)
        if slides and self._setup.dcp > 1:
            raise UsageError(f"--dcp {self._setup.dcp}: vLLM does not divide sliding layers' tokens")
        if slides and self._setup.batch_tokens is None:
            self.notes.append(
                f"a window also holds the tokens of one step: {_BATCH_TOKENS} assumed; say --batch-tokens"
            )
        if any(group.page.kind == "state" for group in self.groups) and self._setup.state_mode == "none":
            self.notes.append(
                "one state a request, as without prefix caching; --state-mode align or all counts more"
            )

    def _bytes_of(self, stage: range) -> int:
        """One block's bytes on a rank of the stage."""
        if self._uniform:
            return sum(page.page_bytes for index in stage for page in self._pages[index])
        held = max((sum(layer in stage for layer in group.layers) for group in self.groups), default=0)
        return held * self.groups[0].page.page_bytes

    # -- counts --------------------------------------------------------------------------------------------

    def blocks(self, memory_bytes: int) -> int:
        """Blocks on every rank: as many as the fullest stage has room for."""
        return memory_bytes // self.bytes_per_block if self.bytes_per_block else 0

    def blocks_per_request(self, context: int) -> int:
        """Blocks of one request of the longest context, over all groups."""
        return sum(self._blocks_of(group.page, context) for group in self._tables)

    def _blocks_of(self, page: Page, context: int) -> int:
        if page.kind == "state":
            drafted = self._setup.drafted
            if self._setup.state_mode == "all":
                return -(-context // page.block_tokens)
            return (2 if self._setup.state_mode == "align" else 1) + drafted
        batch = self._setup.batch_tokens or _BATCH_TOKENS
        if page.kind == "sliding":
            assert page.window is not None
            return -(-min(page.window - 1 + batch, context) // page.block_tokens) + 1
        if page.kind == "chunked":
            assert page.window is not None
            return -(-min(page.window + batch, context) // page.block_tokens)
        on_rank = -(-context // self._setup.dcp)
        return -(-on_rank // page.block_tokens)

    def reserved_bytes(self, context: int) -> int:
        return self.blocks_per_request(context) * self.bytes_per_block

    def capacity(self, memory_bytes: int, context: int | None) -> Capacity:
        blocks = self.blocks(memory_bytes)
        before = blocks // max(1, len(self._tables)) * self.block_tokens * self._setup.dcp
        needed = concurrency = after = None
        if context is not None and self._tables:
            needed = self.blocks_per_request(context)
            concurrency = blocks / needed
            after = int(concurrency * context)
        tokens = after if self._new_meaning and after is not None else before
        return Capacity(
            blocks=blocks,
            tokens=tokens,
            tokens_before=before,
            tokens_after=after,
            max_concurrency=concurrency,
            longest_context=self._longest(blocks),
            blocks_per_request=needed,
        )

    @property
    def _new_meaning(self) -> bool:
        return self._setup.version is None or self._setup.version[:2] >= _NEW_MEANING

    def _longest(self, blocks: int) -> int | None:
        """The longest context whose request fits; None where no group grows."""
        if not any(self._blocks_of(group.page, 1 << 40) > 1 << 20 for group in self._tables):
            return None
        low, high = 0, blocks * max(group.page.block_tokens for group in self._tables) * self._setup.dcp
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_per_request(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

    # -- the log -------------------------------------------------------------------------------------------

    def lines(self, memory_bytes: int | None, context: int | None) -> list[str]:
        found = []
        states = [group.page for group in self.groups if group.page.kind == "state"]
        attends = any(group.page.kind != "state" for group in self.groups)
        if states and attends:
            found.append(f"Setting attention block size to {states[0].block_tokens} tokens")
            state = max(page.state_bytes for page in states)
            if state != states[0].page_bytes:
                padding = 100 * (states[0].page_bytes - state) / state
                found.append(f"Padding mamba page size by {padding:.2f}%")
        for page in dict.fromkeys(group.page for group in self.groups):
            same = [group for group in self.groups if group.page == page]
            if (padding := sum(group.padding for group in same)) > 0:
                real = sum(len(group.layers) for group in same)
                waste = 100 * padding / real
                found.append(f"Add {padding} padding layers, may waste at most {waste:.2f}% KV cache memory")
        if memory_bytes is None:
            return found
        fits = self.capacity(memory_bytes, context)
        found.append(f"Available KV cache memory: {memory_bytes / GIB:.2f} GiB")
        found.append(f"GPU KV cache size: {fits.tokens:,} tokens")
        if fits.max_concurrency is not None:
            found.append(
                f"Maximum concurrency for {context:,} tokens per request: {fits.max_concurrency:.2f}x"
            )
        return found


def _pool(group: Group) -> Pool:
    return Pool(
        name=group.page.kind,
        layers=len(group.layers),
        block_tokens=group.page.block_tokens,
        page_bytes=group.page.page_bytes,
        padding_layers=group.padding,
        window=group.page.window,
    )
