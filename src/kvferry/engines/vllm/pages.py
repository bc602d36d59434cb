"""Copies whole KV blocks between an engine's paged cache and plain buffers, bit for bit.

A block in a buffer is contiguous: the group's layers in their order, each layer's page in the order of its
memory. `strips` says where the bytes lie; this module moves them on the host, and hands device memory to
`pages_cuda`. It knows nothing of requests, keys or tiers, and does not import the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...errors import EngineError
from .pages_cuda import Marked, StagedCopies
from .strips import Page, Strip, layer_text, page_texts, strips_of

__all__ = ["PageGroup", "Pages"]

STAGING_BYTES = 32 << 20

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """One KV cache group on this rank: the layers that share a block table."""

    layers: tuple[str, ...]
    block_bytes: int
    """Bytes of one block of all layers of the group on this rank."""
    fingerprint: str
    """What two replicas must share to read each other's bytes: layers, pages, dtype, byte order, device."""


class Copies(Protocol):
    """Moves blocks of one group; arguments are checked already."""

    def mark(self) -> Marked | None: ...
    def pin(self, memory: memoryview) -> None: ...
    def extract(
        self, group: int, block_ids: Sequence[int], into: Sequence[memoryview], after: Marked | None
    ) -> None: ...
    def inject(
        self, group: int, block_ids: Sequence[int], blocks: Sequence[memoryview], after: Marked | None
    ) -> None: ...


class Pages:
    """The paged KV cache of one rank.

    `extract` and `inject` return when the bytes are where they belong and are safe to call from several
    threads, for different blocks at a time. They use no thread pool and let go of the GIL while they copy.
    """

    def __init__(self, groups: Sequence[PageGroup], num_blocks: int, copies: Copies) -> None:
        self.groups = tuple(groups)
        self.num_blocks = num_blocks
        self._copies = copies

    @classmethod
    def of(
        cls,
        kv_caches: Mapping[str, torch.Tensor | list[torch.Tensor]],
        groups: Sequence[Sequence[str]],
        num_blocks: int,
        *,
        staging_bytes: int = STAGING_BYTES,
    ) -> Pages:
        """Map an engine's caches: `groups` holds the layer names of each KV cache group.

        On CUDA call it where the engine computes: the current stream is the one that later copies wait for
        by default. `staging_bytes` is the size of each of four pinned buffers, and of as many on the device.
        EngineError on a cache whose blocks cannot be told apart.
        """
        if num_blocks < 1:
            raise EngineError(f"a KV cache of {num_blocks} blocks has nothing to share")
        mapped = [strips_of(index, names, kv_caches, num_blocks) for index, names in enumerate(groups)]
        strips = [part for _, part in mapped]
        devices = {strip.raw.device for part in strips for strip in part}
        if len(devices) != 1:
            raise EngineError(
                f"the KV cache lies on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): "
                "one rank's cache must be on one"
            )
        device = devices.pop()
        made = [
            PageGroup(
                tuple(names), sum(strip.block_bytes for strip in part), _fingerprint(names, pages, device)
            )
            for names, (pages, part) in zip(groups, mapped, strict=True)
        ]
        copies = HostCopies(strips) if device.type == "cpu" else StagedCopies(strips, device, staging_bytes)
        return cls(made, num_blocks, copies)

    def mark(self) -> Marked | None:
        """A point in the current stream, for `after`: everything launched before it. None on the host."""
        return self._copies.mark()

    def pin(self, memory: memoryview) -> None:
        """Tell of host memory that blocks will often lie in, a tier's arena: a device then copies straight.

        It must live as long as these pages. Does nothing on the host.
        """
        self._copies.pin(memory)

    def extract(
        self,
        group: int,
        block_ids: Sequence[int],
        into: Sequence[memoryview],
        *,
        after: Marked | None = None,
    ) -> None:
        """Copy each block into its buffer of `block_bytes`.

        On CUDA the copy waits for `after`; without it, for all that the engine's stream had queued.
        ValueError, with nothing copied, on a wrong block id or buffer.
        """
        self._check(group, block_ids, into)
        if any(buffer.readonly for buffer in into):
            raise ValueError("a block cannot be extracted into read-only memory")
        self._copies.extract(group, block_ids, into, after)

    def inject(
        self,
        group: int,
        block_ids: Sequence[int],
        blocks: Sequence[memoryview],
        *,
        after: Marked | None = None,
    ) -> None:
        """Write each buffer over its block, and over nothing else; arguments and errors as of `extract`.

        `after` matters here too: a kernel that still reads the block's last owner must be over.
        """
        self._check(group, block_ids, blocks)
        if len(set(block_ids)) != len(block_ids):
            raise ValueError(f"a block is injected twice at once: {list(block_ids)}")
        self._copies.inject(group, block_ids, blocks, after)

    def _check(self, group: int, block_ids: Sequence[int], buffers: Sequence[memoryview]) -> None:
        if not 0 <= group < len(self.groups):
            raise ValueError(f"there is no KV cache group {group}, only {len(self.groups)}")
        if len(block_ids) != len(buffers):
            raise ValueError(f"{len(block_ids)} blocks do not fit {len(buffers)} buffers")
        size = self.groups[group].block_bytes
        for block, buffer in zip(block_ids, buffers, strict=True):
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"block {block} is not one of the {self.num_blocks} of the cache")
            if buffer.nbytes != size or not buffer.c_contiguous:
                raise ValueError(f"a buffer for a block must be {size} contiguous bytes, not {buffer.nbytes}")


class HostCopies:
    """Memory to memory: one strided copy per strip, and per run of blocks that lie as their buffers do.

    Runs matter: every copy lets go of the GIL and then waits for whoever took it, an engine's loop perhaps.
    """

    def __init__(self, groups: Sequence[Sequence[Strip]]) -> None:
        self._groups: list[list[tuple[Bytes, int]]] = []
        for strips in groups:
            offsets = accumulate((strip.block_bytes for strip in strips), initial=0)
            views = [(strip.view().numpy(), at) for strip, at in zip(strips, offsets, strict=False)]
            self._groups.append(views)

    def mark(self) -> None:
        """Nothing on the host runs behind the caller's back."""

    def pin(self, memory: memoryview) -> None:
        """All host memory is alike to the host."""

    def extract(
        self, group: int, block_ids: Sequence[int], into: Sequence[memoryview], after: Marked | None
    ) -> None:
        """Gather each block into its buffer."""
        for cached, buffer in self._pairs(group, block_ids, into):
            np.copyto(buffer, cached)

    def inject(
        self, group: int, block_ids: Sequence[int], blocks: Sequence[memoryview], after: Marked | None
    ) -> None:
        """Scatter each buffer over its block."""
        for cached, buffer in self._pairs(group, block_ids, blocks):
            np.copyto(cached, buffer)

    def _pairs(
        self, group: int, block_ids: Sequence[int], buffers: Sequence[memoryview]
    ) -> Iterator[tuple[Bytes, Bytes]]:
        """Views of the cache and of buffers, alike in shape: [block, layer, page axes...]."""
        flats = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
        for start, stop, step in _runs(block_ids, flats):
            first = block_ids[start]
            for view, at in self._groups[group]:
                cached = view[first : first + stop - start]
                # Dense within a block, and `step` bytes from one buffer to the next, which is held as well.
                inner = accumulate(reversed(cached.shape[2:]), mul, initial=1)
                strides = (step, *reversed(list(inner)))
                yield cached, as_strided(flats[start][at:], cached.shape, strides)


def _runs(block_ids: Sequence[int], flats: Sequence[Bytes]) -> Iterator[tuple[int, int, int]]:
    """Start, stop and step: blocks that follow each other into buffers at one distance, ahead in memory."""
    addresses = [flat.__array_interface__["data"][0] for flat in flats]
    start = 0
    while start < len(flats):
        size, stop = flats[start].size, start + 1
        step = addresses[stop] - addresses[start] if stop < len(flats) else size
        while (
            stop < len(flats)
            and step >= size
            and addresses[stop] - addresses[stop - 1] == step
            and block_ids[stop] == block_ids[stop - 1] + 1
        ):
            stop += 1
        yield start, stop, step
        start = stop


def _fingerprint(names: Sequence[str], pages: Sequence[Page], device: torch.device) -> str:
    # The kernels that filled a block on the host pack it as the instruction set likes.
    isa = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "-")
    where = f"cpu-{isa}" if device.type == "cpu" else device.type
    return f"{layer_text(names)}/{page_texts(pages)}/{sys.byteorder}/{where}"
