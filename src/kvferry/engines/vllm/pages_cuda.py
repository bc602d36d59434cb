"""Copies blocks of a paged cache on a device, through pinned memory, beside the engine's computing.

A batch of blocks is gathered into one dense buffer on the device by one kernel per strip (all layers at
once where they lie at one distance), and crosses in one copy; the other way it crosses and is scattered.
Each direction has its own lock and two halves of staging memory, each with a stream of the lowest priority,
so that one half is gathered and emptied while the other crosses. Memory that was pinned beforehand is
crossed to directly. Both calls return after the event behind their last copy: what they report is done.

Knows strips and streams; nothing of requests. The same code runs on the host, without streams, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import EngineError
from .strips import Strip

__all__ = ["Marked", "StagedCopies"]

# Torch gives these classes no types.
cuda: Any = torch.cuda

WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True, slots=True)
class Marked:
    """A point in a stream of the device, made by `mark`."""

    event: torch.cuda.Event


class StagedCopies:
    """Blocks of all groups of one device; see the module."""

    def __init__(self, groups: Sequence[Sequence[Strip]], device: torch.device, staging_bytes: int) -> None:
        if device.type not in ("cuda", "cpu"):
            raise EngineError(f"KV pages on {device.type!r} cannot be copied: cuda and cpu can")
        self.device = device
        self._groups = [_Group(strips) for strips in groups]
        block_bytes = [group.block_bytes for group in self._groups]
        size = max(staging_bytes, *block_bytes)
        most_blocks = size // min(block_bytes)
        self._compute = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._out = _Lane(device, size, most_blocks)
        self._in = _Lane(device, size, most_blocks)
        self._pinned: list[tuple[int, int, torch.Tensor]] = []

    def mark(self) -> Marked | None:
        """What the current stream has been given so far; None on the host."""
        if self._compute is None:
            return None
        return _marked(torch.cuda.current_stream(self.device))

    def pin(self, memory: memoryview) -> None:
        """Register `memory` with the driver; EngineError when it will not be."""
        host = torch.frombuffer(memory, dtype=torch.uint8)
        if self._compute is not None and not host.is_pinned():
            answer = cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0).value
            if answer:
                raise EngineError(
                    f"{host.numel()} bytes of host memory cannot be pinned (CUDA error {answer}): "
                    "raise the limit of locked memory or make the memory tier smaller"
                )
        self._pinned.append((host.data_ptr(), host.data_ptr() + host.numel(), host))

    def extract(
        self, group: int, block_ids: Sequence[int], into: Sequence[memoryview], after: Marked | None
    ) -> None:
        """Copy each block into its buffer, after `after`."""
        strips = self._groups[group]
        flats, direct = self._flats(into)
        lane = self._out
        with lane.turn(self._after(after)):
            waiting: tuple[_Half, slice] | None = None
            for half, part in lane.batches(len(block_ids), strips.block_bytes):
                with half.launching():
                    ids = half.send_ids(block_ids[part])
                    strips.gather(ids, half.device)
                    if direct is None:
                        half.cross_out(len(ids) * strips.block_bytes)
                    else:
                        strips.between(half.device, direct[part], outward=True)
                if waiting is not None:
                    _drain(strips, *waiting, flats, direct)
                waiting = half, part
            if waiting is not None:
                _drain(strips, *waiting, flats, direct)

    def inject(
        self, group: int, block_ids: Sequence[int], blocks: Sequence[memoryview], after: Marked | None
    ) -> None:
        """Write each buffer over its block, after `after`."""
        strips = self._groups[group]
        flats, direct = self._flats(blocks)
        lane = self._in
        with lane.turn(self._after(after)):
            for half, part in lane.batches(len(block_ids), strips.block_bytes):
                half.wait()
                if direct is None:
                    strips.fill(half.host_bytes, flats[part])
                with half.launching():
                    ids = half.send_ids(block_ids[part])
                    if direct is None:
                        half.cross_in(len(ids) * strips.block_bytes)
                    else:
                        strips.between(half.device, direct[part], outward=False)
                    strips.scatter(ids, half.device)

    def _after(self, after: Marked | None) -> Marked | None:
        # Without a mark, all that the engine's stream holds by now: never less than a mark would say.
        return after or (_marked(self._compute) if self._compute is not None else None)

    def _flats(self, buffers: Sequence[memoryview]) -> tuple[list[np.ndarray], list[torch.Tensor] | None]:
        """The buffers as bytes, and as pinned memory where all of them are."""
        flats = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
        direct: list[torch.Tensor] = []
        for flat in flats:
            address = flat.__array_interface__["data"][0]
            for start, stop, host in self._pinned:
                if start <= address and address + flat.size <= stop:
                    direct.append(host[address - start : address - start + flat.size])
                    break
            else:
                return flats, None
        return flats, direct


class _Group:
    """The strips of a group over dense batches: strip after strip, and in each block after block."""

    def __init__(self, strips: Sequence[Strip]) -> None:
        # One word for all strips: a part of a batch begins behind others, at a multiple of it.
        self.word = WORDS[min(strip.word_bytes for strip in strips)]
        self.strips = [(strip.block_bytes, strip.view(self.word)) for strip in strips]
        self.block_bytes = sum(strip.block_bytes for strip in strips)

    def gather(self, ids: torch.Tensor, dense: torch.Tensor) -> None:
        for view, part in self._parts(ids, dense):
            torch.index_select(view, 0, ids, out=part)

    def scatter(self, ids: torch.Tensor, dense: torch.Tensor) -> None:
        for view, part in self._parts(ids, dense):
            view.index_copy_(0, ids, part)

    def between(self, dense: torch.Tensor, blocks: Sequence[torch.Tensor], outward: bool) -> None:
        """Cross between a batch on the device and pinned blocks, each strip of a block on its own."""
        for number, place, piece in self._pieces(len(blocks)):
            ends = blocks[number][piece], dense[place]
            target, source = ends if outward else ends[::-1]
            target.copy_(source, non_blocking=True)

    def fill(self, dense: np.ndarray, flats: Sequence[np.ndarray]) -> None:
        for number, place, piece in self._pieces(len(flats)):
            np.copyto(dense[place], flats[number][piece])

    def empty(self, dense: np.ndarray, flats: Sequence[np.ndarray]) -> None:
        for number, place, piece in self._pieces(len(flats)):
            np.copyto(flats[number][piece], dense[place])

    def _parts(self, ids: torch.Tensor, dense: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        at = 0
        for size, view in self.strips:
            stop = at + len(ids) * size
            yield view, dense[at:stop].view(self.word).view(len(ids), *view.shape[1:])
            at = stop

    def _pieces(self, count: int) -> Iterator[tuple[int, slice, slice]]:
        """Number of a block, place of one strip of it in the batch, and in the block."""
        at = before = 0
        for size, _ in self.strips:
            for number in range(count):
                yield number, slice(at, at + size), slice(before, before + size)
                at += size
            before += size


class _Half:
    """Staging memory for one batch, and the stream that uses it: one half gathers, one crosses."""

    def __init__(self, device: torch.device, size: int, most_blocks: int) -> None:
        on_device = device.type == "cuda"
        # Allocated where the engine computes, and first used after a mark of that stream: whatever used this
        # memory before is over by then.
        self.device = torch.empty(size, dtype=torch.uint8, device=device)
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=on_device)
        self.host_bytes = self.host.numpy()
        self._ids = torch.empty(most_blocks, dtype=torch.int64, device=device)
        self._host_ids = torch.empty(most_blocks, dtype=torch.int64, pin_memory=on_device)
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None
        if on_device:
            lowest, _ = cuda.Stream.priority_range()
            self._stream = cuda.Stream(device, priority=lowest)
            # A thread that waits sleeps: spinning would take a core from the engine.
            self._done = cuda.Event(blocking=True)

    def follow(self, after: Marked) -> None:
        """What this half launches from now on waits for `after`."""
        if self._stream is not None:
            self._stream.wait_event(after.event)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Launches within go to the half's stream; `wait` waits for them.

        In inference mode, since engines allocate in it and nothing else may then write.
        """
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), stream:
            yield
            if self._done is not None:
                self._done.record()

    def wait(self) -> None:
        if self._done is not None:
            self._done.synchronize()

    def settle(self) -> None:
        """Wait for everything, launches that broke off included."""
        self.wait()
        if self._stream is not None:
            self._stream.synchronize()

    def send_ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        count = len(block_ids)
        self._host_ids.numpy()[:count] = block_ids
        return self._ids[:count].copy_(self._host_ids[:count], non_blocking=True)

    def cross_out(self, size: int) -> None:
        self.host[:size].copy_(self.device[:size], non_blocking=True)

    def cross_in(self, size: int) -> None:
        self.device[:size].copy_(self.host[:size], non_blocking=True)


class _Lane:
    """One direction: two halves taken in turn, by one caller at a time."""

    def __init__(self, device: torch.device, size: int, most_blocks: int) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._halves = [_Half(device, size, most_blocks) for _ in range(2)]

    @contextmanager
    def turn(self, after: Marked | None) -> Iterator[None]:
        """The lane for one call; whatever happens, nothing of it is in flight when the turn is over."""
        with self._lock:
            try:
                if after is not None:
                    for half in self._halves:
                        half.follow(after)
                yield
            finally:
                for half in self._halves:
                    half.settle()

    def batches(self, count: int, block_bytes: int) -> Iterator[tuple[_Half, slice]]:
        """Halves in turn, each with the blocks that fit it."""
        step = self._size // block_bytes
        for number, start in enumerate(range(0, count, step)):
            yield self._halves[number % 2], slice(start, start + step)


def _marked(stream: torch.cuda.Stream) -> Marked:
    event = cuda.Event()
    event.record(stream)
    return Marked(event)


def _drain(
    strips: _Group,
    half: _Half,
    part: slice,
    flats: Sequence[np.ndarray],
    direct: Sequence[torch.Tensor] | None,
) -> None:
    half.wait()
    if direct is None:
        strips.empty(half.host_bytes, flats[part])
