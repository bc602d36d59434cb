"""vLLM's pages: what a block of one layer is made of, and how pages of unlike layers are made alike.

Owns three rules. A state takes one page a request; where a model has attention too, the attention block
grows until its page holds a state, and the state is padded to it. Attention pages that still differ are
made alike by multiplying the block size of the smaller ones. What cannot be made alike is an error, as it
is in vLLM.

Source: vLLM, `v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ...errors import ModelError
from ..layers import Model
from .kept import Kept
from .setup import Setup

__all__ = ["Page", "pages_of", "unified"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of one layer: layers with equal specs may share a group."""

    kind: Literal["full", "latent", "sliding", "chunked", "state"]
    block_tokens: int
    page_bytes: int
    window: int | None = None
    token_bytes: int = 0
    """Of attention; 0 of a state."""
    state_bytes: int = 0
    """Of a state before padding."""

    @property
    def grows(self) -> bool:
        """Whether it needs blocks for every token."""
        return self.kind in ("full", "latent")


def pages_of(model: Model, setup: Setup, kept: list[Kept]) -> list[list[Page]]:
    """The specs of every layer: none, one, or several (attention beside a state, an indexer)."""
    block = _block_tokens(model, setup, kept)
    attention = max((one.key_bytes + one.value_bytes for one in kept), default=0)
    made: dict[Kept, list[Page]] = {}
    found = []
    for one in kept:
        pages = made.get(one)
        if pages is None:
            pages = made[one] = _pages(one, block, attention)
        found.append(pages)
    return found


def unified(pages: set[Page], source: str) -> dict[Page, Page]:
    """Specs with one page size. Raises `ModelError` where a smaller page does not divide the largest."""
    largest = max(page.page_bytes for page in pages)
    found = {}
    for page in pages:
        if largest % page.page_bytes:
            raise ModelError(
                f"{source}: vLLM cannot unify its pages of {page.page_bytes} and {largest} bytes; "
                "without the hybrid manager (--no-hybrid) it keeps windows as full attention"
            )
        ratio = largest // page.page_bytes
        found[page] = (
            page
            if ratio == 1
            else msgspec.structs.replace(page, page_bytes=largest, block_tokens=page.block_tokens * ratio)
        )
    return found


def _pages(kept: Kept, block: int, attention: int) -> list[Page]:
    pages = []
    if (tokens := kept.key_bytes + kept.value_bytes) > 0:
        kind: Literal["full", "latent", "sliding", "chunked"] = "latent" if kept.latent else "full"
        if kept.window is not None:
            kind = "chunked" if kept.chunked else "sliding"
        pages.append(
            Page(
                kind=kind,
                block_tokens=block,
                page_bytes=block * tokens,
                window=kept.window,
                token_bytes=tokens,
            )
        )
    if kept.index_bytes:
        pages.append(
            Page(
                kind="latent",
                block_tokens=block,
                page_bytes=block * kept.index_bytes,
                token_bytes=kept.index_bytes,
            )
        )
    if kept.state_bytes:
        page = max(block * attention, kept.state_bytes) if attention else kept.state_bytes
        pages.append(Page(kind="state", block_tokens=block, page_bytes=page, state_bytes=kept.state_bytes))
    return pages


def _block_tokens(model: Model, setup: Setup, kept: list[Kept]) -> int:
    latent = any(one.latent for one in kept)
    state = max((one.state_bytes for one in kept), default=0)
    attention = max((one.key_bytes + one.value_bytes for one in kept), default=0)
    if not state:
        return setup.block_tokens or (64 if latent else 16)
    if not attention:
        return setup.block_tokens or setup.context or model.context or 1
    align = setup.block_align or (64 if latent else 16)
    if setup.state_mode == "all" and model.state_chunk is not None:
        align = math.lcm(align, model.state_chunk)
    needed = align * -(-state // (align * attention))
    return max(needed, setup.block_tokens or 0)
