"""vLLM's groups: layers of one kind, cut into groups of equal size that share memory pools.

Owns the heuristic: the size of a group is that of the smallest kind, or of the largest where that is less
than 1.5 times as large; kinds are padded up to whole groups, and layers are dealt out in turn, so that
every pipeline stage has a part of each group.

Source: vLLM, `v1/core/kv_cache_utils.py`, `_get_kv_cache_groups_uniform_page_size`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .pages import Page

__all__ = ["Group", "grouped", "is_uniform"]


class Group(msgspec.Struct, frozen=True):
    """Layers that share a block table."""

    page: Page
    layers: tuple[int, ...]
    padding: int = 0


def is_uniform(pages: Sequence[Page]) -> bool:
    """Whether all layers need the same slots, so that each may have a page of its own size in one group."""
    first = pages[0]
    if any(page.block_tokens != first.block_tokens for page in pages):
        return False
    if all(page.grows for page in pages):
        return True
    return all(page.kind == first.kind and page.window == first.window for page in pages) and (
        first.kind != "state" or len(set(pages)) == 1
    )


def grouped(buckets: Mapping[Page, Sequence[int]]) -> tuple[int, list[Group]]:
    """The size of a group, padding included, and the groups."""
    counts = [len(layers) for layers in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for page, layers in buckets.items():
        number = -(-len(layers) // size)
        padding = number * size - len(layers)
        groups += [
            Group(page, tuple(layers[turn::number]), padding if turn == number - 1 else 0)
            for turn in range(number)
        ]
    return size, groups
