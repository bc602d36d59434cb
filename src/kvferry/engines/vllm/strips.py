"""Where the bytes of one KV block lie in an engine's tensors, as few strided strips as will describe them.

Owns the geometry: which axis counts blocks, which bytes of a page hold content and which only pad, in what
order they are taken, which layers lie at one distance and can be copied together, and the text that says
when two replicas' blocks are the same bytes. Refuses to know devices, streams and the engine's own classes.

Accepted per layer (`num_blocks` blocks, any other axes, any strides that keep bytes apart):

    (num_blocks, ...)            blocks first: [block, head, token, content], an MLA latent, a state page
    (2, num_blocks, ...)         keys and values apart, blocks second
    (num_blocks * n, ...)        blocks cut into n kernel blocks that follow each other
    a list of such tensors       a layer with several states

Within a page, axes are taken in the order of memory, the widest stride first, so that a dense page is one
run. Gaps are left alone: padding at the end of a page, other layers between, heads outside the blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...errors import EngineError

__all__ = ["Page", "Strip", "layer_text", "page_texts", "strips_of"]

Axis = tuple[int, int]
"""Size, and stride in bytes."""


@dataclass(frozen=True, slots=True)
class Page:
    """One tensor of one layer: block b begins at `start + b * block_stride` of its storage."""

    layer: str
    raw: torch.Tensor
    """Every byte of the storage, uint8, one axis."""
    start: int
    block_stride: int
    axes: tuple[Axis, ...]
    """Of one block, the widest stride first; neighbours that follow without a gap are one axis."""
    text: str

    @property
    def place(self) -> tuple[object, ...]:
        return (self.raw.data_ptr(), self.start, self.block_stride, self.axes)

    def runs(self, block: int) -> tuple[np.ndarray, int]:
        """First byte of every contiguous run of a block in its storage, and the length of one run."""
        *outer, (length, stride) = self.axes
        if stride != 1:
            outer, length = list(self.axes), 1
        starts = np.array([self.start + block * self.block_stride], dtype=np.int64)
        for size, stride in outer:
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
        return starts, length


@dataclass(frozen=True, slots=True)
class Strip:
    """Equal pages of `layers` layers, `layer_stride` bytes apart in one storage."""

    raw: torch.Tensor
    start: int
    num_blocks: int
    block_stride: int
    layers: int
    layer_stride: int
    axes: tuple[Axis, ...]

    @property
    def page_bytes(self) -> int:
        return math.prod(size for size, _ in self.axes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this strip: all its layers, without gaps."""
        return self.layers * self.page_bytes

    @property
    def word_bytes(self) -> int:
        """The widest of 8, 4, 2, 1 in which every address and run of this strip is whole."""
        run = self.axes[-1][0] if self.axes[-1][1] == 1 else 1
        steps = [self.raw.data_ptr(), self.start, self.block_stride, self.layer_stride, run]
        steps += [stride for size, stride in self.axes if stride != 1]
        return math.gcd(8, *steps)

    def view(self, word: torch.dtype = torch.uint8) -> torch.Tensor:
        """[block, layer, page axes...] of `word`, sharing the engine's memory.

        `word` may be as wide as `word_bytes`; the last axis must then be a run.
        """
        width = word.itemsize
        raw = self.raw[: self.raw.numel() // width * width].view(word)
        axes: list[Axis] = [(self.num_blocks, self.block_stride), (self.layers, self.layer_stride)]
        axes += [axis for axis in self.axes if axis[1] != 1]
        run = [(size // width, 1) for size, stride in self.axes if stride == 1]
        sizes = [size for size, _ in axes] + [size for size, _ in run]
        strides = [stride // width for _, stride in axes] + [1] * len(run)
        return raw.as_strided(sizes, strides, self.start // width)


def strips_of(
    index: int,
    layers: Sequence[str],
    kv_caches: Mapping[str, torch.Tensor | list[torch.Tensor]],
    num_blocks: int,
) -> tuple[tuple[Page, ...], tuple[Strip, ...]]:
    """The pages of group `index`, in the order of `layers`, and the strips that cover them in that order.

    A layer that reuses another layer's tensor is copied once. EngineError on anything that cannot be mapped.
    """
    if not layers:
        raise EngineError(f"KV cache group {index} has no layers on this rank: its blocks cannot be shared")
    raws: dict[int, torch.Tensor] = {}
    pages: list[Page] = []
    places: set[tuple[object, ...]] = set()
    for name in layers:
        if name not in kv_caches:
            raise EngineError(f"KV cache group {index} names layer {name!r}, which has no KV cache here")
        held = kv_caches[name]
        for tensor in held if isinstance(held, list | tuple) else [held]:
            page = _page(name, tensor, num_blocks, raws)
            if page.place not in places:
                places.add(page.place)
                pages.append(page)
    if not pages:
        raise EngineError(f"KV cache group {index} has layers without a tensor: {', '.join(layers)}")
    _refuse_overlap(index, pages, num_blocks)
    return tuple(pages), tuple(_strips(pages, num_blocks))


def page_texts(pages: Iterable[Page]) -> str:
    """Shape and dtype of the pages in order, runs of equal ones counted: "30*bfloat16[0:3,1:32,2:128]".

    Axes stand in the order of memory with their number in the tensor (the block's and those of size 1 left
    out), so that a transposed page reads differently.
    """
    counted: list[tuple[str, int]] = []
    for page in pages:
        if counted and counted[-1][0] == page.text:
            counted[-1] = (page.text, counted[-1][1] + 1)
        else:
            counted.append((page.text, 1))
    return "+".join(f"{count}*{text}" for text, count in counted)


def layer_text(layers: Sequence[str]) -> str:
    """Layer names in order with runs of numbers folded: "model.layers.#.self_attn.attn[0-29]"."""
    folded: list[tuple[str, list[list[int]]]] = []
    for name in layers:
        found = re.search(r"\d+", name)
        if found is None:
            folded.append((name, []))
            continue
        number, stem = int(found.group()), f"{name[: found.start()]}#{name[found.end() :]}"
        if not folded or folded[-1][0] != stem:
            folded.append((stem, [[number, number]]))
        elif folded[-1][1][-1][1] == number - 1:
            folded[-1][1][-1][1] = number
        else:
            folded[-1][1].append([number, number])
    return "+".join(
        stem + (f"[{','.join(f'{a}-{b}' if a < b else str(a) for a, b in runs)}]" if runs else "")
        for stem, runs in folded
    )


def _page(name: str, tensor: torch.Tensor, num_blocks: int, raws: dict[int, torch.Tensor]) -> Page:
    width = tensor.element_size()
    block_axis = _block_axis(name, tuple(tensor.shape), num_blocks)
    parts = tensor.shape[block_axis] // num_blocks
    step = tensor.stride(block_axis) * width
    inner = [
        (size, stride * width)
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if axis != block_axis
    ]
    axes = [axis for axis in [(parts, step), *inner] if axis[0] != 1]
    block_stride = step * parts
    order = sorted(range(len(axes)), key=lambda number: -axes[number][1])
    every = [axes[number] for number in order]
    _refuse_tangle(name, tensor, [*every, (num_blocks, block_stride)], width)
    sizes = ",".join(f"{number}:{axes[number][0]}" for number in order)
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in raws:
        raws[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return Page(
        layer=name,
        raw=raws[storage.data_ptr()],
        start=int(tensor.storage_offset()) * width,
        block_stride=block_stride,
        axes=_joined([*every, (width, 1)]),
        text=f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]",
    )


def _block_axis(name: str, shape: tuple[int, ...], num_blocks: int) -> int:
    # One axis is a raw buffer that some attention backend divides by rules of its own.
    places = [axis for axis in (0, 1) if axis + 1 < len(shape) and (axis == 0 or shape[0] == 2)]
    for fits in (
        [axis for axis in places if shape[axis] == num_blocks],
        [axis for axis in places if shape[axis] and shape[axis] % num_blocks == 0],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise EngineError(
                f"the KV cache of layer {name!r} has shape {shape}, where both of the first two axes could "
                f"count its {num_blocks} blocks: give the engine more KV cache blocks"
            )
    raise EngineError(
        f"the KV cache of layer {name!r} has shape {shape}, where no axis counts its {num_blocks} blocks: "
        "expected (num_blocks, ...), (2, num_blocks, ...) or whole kernel blocks, num_blocks * n"
    )


def _refuse_tangle(name: str, tensor: torch.Tensor, axes: Sequence[Axis], width: int) -> None:
    reach = width
    for size, stride in sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: axis[1]):
        if stride < reach:
            raise EngineError(
                f"the KV cache of layer {name!r} has shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}, so that its blocks share bytes: they cannot be copied one by one"
            )
        reach += (size - 1) * stride


def _joined(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    joined: list[Axis] = []
    for size, stride in axes:
        if size == 1 and len(axes) > 1 and stride != 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return tuple(joined)


def _refuse_overlap(index: int, pages: Sequence[Page], num_blocks: int) -> None:
    """Two blocks are enough: pages of one storage repeat at their block strides."""
    by_storage: dict[int, list[Page]] = {}
    for page in pages:
        by_storage.setdefault(page.raw.data_ptr(), []).append(page)
    for group in by_storage.values():
        starts, stops, owners = [], [], []
        for number, page in enumerate(group):
            for block in range(min(2, num_blocks)):
                begin, length = page.runs(block)
                starts.append(begin)
                stops.append(begin + length)
                owners.append(np.full(len(begin), number))
        begins, ends, who = (np.concatenate(part) for part in (starts, stops, owners))
        order = np.argsort(begins, kind="stable")
        bad = np.flatnonzero(ends[order][:-1] > begins[order][1:])
        if bad.size:
            first, second = (group[who[order][at]].layer for at in (bad[0], bad[0] + 1))
            raise EngineError(
                f"in KV cache group {index}, blocks of layers {first!r} and {second!r} share bytes: "
                "they cannot be copied apart"
            )


def _strips(pages: Sequence[Page], num_blocks: int) -> list[Strip]:
    strips: list[Strip] = []
    for page in pages:
        if strips:
            last = strips[-1]
            step = page.start - (last.start + (last.layers - 1) * last.layer_stride)
            alike = (last.raw is page.raw, last.block_stride, last.axes) == (
                True,
                page.block_stride,
                page.axes,
            )
            if alike and step > 0 and (last.layers == 1 or step == last.layer_stride):
                strips[-1] = replace(last, layers=last.layers + 1, layer_stride=step)
                continue
        strips.append(Strip(page.raw, page.start, num_blocks, page.block_stride, 1, 0, page.axes))
    return strips
