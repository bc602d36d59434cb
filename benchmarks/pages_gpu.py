"""KV blocks of a paged cache to host memory and back, beside a plain pinned copy, on one GPU.

Shape of Qwen3-8B: 36 layers, 8 KV heads of 128, bf16, 16 tokens a block (2.25 MiB). Three layouts of the
cache: all layers in one storage with layers outermost, the same with blocks outermost, and one tensor of
keys and values for each layer. First every byte is checked, then rates, then what copying does to matrix
products that run meanwhile. Rounds change which side goes first, and ratios are taken within a round. Needs
torch and numpy, no engine, and under four minutes. `--cpu` runs the same on a host with a small shape.

    PYTHONPATH=src python benchmarks/pages_gpu.py [--cpu] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvferry.engines.vllm.pages import Pages

# Torch gives its streams no types.
cuda: Any = torch.cuda

Side = Callable[[], None]


@dataclass(frozen=True)
class Shape:
    """What is copied, and what computes beside it."""

    device: torch.device
    layers: int
    blocks: int
    moved: int
    """Blocks in one call."""
    wide: int
    """Edge of the square matrices."""
    kv_heads: int = 8
    block_tokens: int = 16
    head_dim: int = 128

    @property
    def block_bytes(self) -> int:
        return self.layers * self.kv_heads * self.block_tokens * self.head_dim * 2 * 2


GPU = Shape(torch.device("cuda"), layers=36, blocks=2048, moved=256, wide=8192)
CPU = Shape(torch.device("cpu"), layers=4, blocks=128, moved=64, wide=512)


class Cache:
    """One layout of a paged cache, filled with random bytes."""

    def __init__(self, kind: str, shape: Shape, seed: int) -> None:
        self.shape = shape
        heads, tokens, dim = shape.kv_heads, shape.block_tokens, shape.head_dim
        dice = torch.Generator(shape.device).manual_seed(seed)
        words = shape.blocks * shape.block_bytes // 8
        low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
        raw = torch.empty(words, dtype=torch.int64, device=shape.device).random_(low, high, generator=dice)
        self.raw = raw
        values = raw.view(torch.bfloat16)
        if kind == "layer_outermost":
            layers = list(values.view(shape.layers, shape.blocks, heads, tokens, 2 * dim))
        elif kind == "block_outermost":
            layers = list(values.view(shape.blocks, shape.layers, heads, tokens, 2 * dim).transpose(0, 1))
        else:
            layers = list(values.view(shape.layers, 2, shape.blocks, tokens, heads, dim))
        self.layers = {f"model.layers.{number}.self_attn.attn": layer for number, layer in enumerate(layers)}
        self.block_axis = 1 if kind == "keys_values_apart" else 0
        self.pages = Pages.of(self.layers, [list(self.layers)], shape.blocks)

    def blocks(self, ids: Sequence[int]) -> torch.Tensor:
        """[block, bytes] as they should arrive, by plain indexing."""
        index = torch.tensor(ids, device=self.shape.device)
        parts = [layer.index_select(self.block_axis, index) for layer in self.layers.values()]
        parts = [part.movedim(self.block_axis, 0).reshape(len(ids), -1) for part in parts]
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)

    def put(self, ids: Sequence[int], source: Cache, source_ids: Sequence[int]) -> None:
        """Copy another cache's blocks over these, by plain indexing on the device."""
        into, of = (torch.tensor(which, device=self.shape.device) for which in (ids, source_ids))
        for layer, other in zip(self.layers.values(), source.layers.values(), strict=True):
            layer.index_copy_(self.block_axis, into, other.index_select(self.block_axis, of))


KINDS = ("layer_outermost", "block_outermost", "keys_values_apart")


def finished(shape: Shape) -> None:
    if shape.device.type == "cuda":
        torch.cuda.synchronize()


def host(shape: Shape, pinned: bool) -> tuple[torch.Tensor, list[memoryview]]:
    """Touched memory for one call, and its blocks."""
    pin = pinned and shape.device.type == "cuda"
    memory = torch.ones(shape.moved * shape.block_bytes, dtype=torch.uint8, pin_memory=pin)
    return memory, [memoryview(row.numpy()) for row in memory.view(shape.moved, -1)]


def some_ids(shape: Shape, seed: int) -> list[int]:
    order = torch.randperm(shape.blocks, generator=torch.Generator().manual_seed(seed))
    return [int(block) for block in order[: shape.moved]]


def check(kind: str, shape: Shape) -> None:
    """Every byte: out, in, nothing else touched, and what was launched just before is waited for."""
    source, target = Cache(kind, shape, 1), Cache(kind, shape, 2)
    taken, given = some_ids(shape, 3), some_ids(shape, 4)
    for pinned in (False, True):
        memory, blocks = host(shape, pinned)
        if pinned:
            source.pages.pin(memory.numpy().data)
            target.pages.pin(memory.numpy().data)
        source.pages.extract(0, taken, blocks)
        expect(torch.equal(memory.view(shape.moved, -1), source.blocks(taken).cpu()), kind, "extract")
        before = target.raw.clone()
        target.pages.inject(0, given, blocks)
        got = target.raw.clone()
        target.raw.copy_(before)
        target.put(given, source, taken)
        expect(torch.equal(got, target.raw), kind, "inject")
        # A new owner's bytes, queued behind work that takes a while.
        busy = torch.randn(shape.wide, shape.wide, device=shape.device)
        for _ in range(20):
            busy = busy @ busy
        source.put(taken, target, list(reversed(given)))
        source.pages.extract(0, taken, blocks, after=source.pages.mark())
        expect(torch.equal(memory.view(shape.moved, -1), source.blocks(taken).cpu()), kind, "order")


def expect(holds: bool, kind: str, what: str) -> None:
    if not holds:
        raise SystemExit(f"{kind}: {what} is wrong")


class Bench:
    """Collects rates or times by side, and ratios by round."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.figures: dict[str, dict[str, Any]] = {}
        self.ratios: dict[str, dict[str, float]] = {}

    def seconds(self, sides: dict[str, Side], shape: Shape) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for round_ in range(-1, self.runs):
            names = list(sides) if round_ % 2 else list(reversed(sides))
            for name in names:
                finished(shape)
                start = time.perf_counter()
                sides[name]()
                finished(shape)
                if round_ >= 0:
                    samples[name].append(time.perf_counter() - start)
        return samples

    def figure(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**spread(samples), "unit": unit}
        print(f"{name:44} {self.figures[name]['median']:9.2f} {unit}", file=sys.stderr)

    def ratio(self, name: str, above: Sequence[float], below: Sequence[float]) -> None:
        self.ratios[name] = spread([a / b for a, b in zip(above, below, strict=True)])
        print(f"{name:44} {self.ratios[name]['median']:9.2f}", file=sys.stderr)


def spread(samples: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def rates(bench: Bench, kind: str, shape: Shape) -> None:
    """GB/s of both directions beside one plain copy of as many bytes between a tensor and pinned memory."""
    cache, ids, size = Cache(kind, shape, 1), some_ids(shape, 3), shape.moved * shape.block_bytes
    arena, pinned = host(shape, True)
    _, pageable = host(shape, False)
    plain, dense = host(shape, True)[0], torch.ones(size, dtype=torch.uint8, device=shape.device)
    pages = cache.pages
    pages.pin(arena.numpy().data)

    def layer_by_layer() -> None:
        index = torch.tensor(ids, device=shape.device)
        for layer in cache.layers.values():
            layer.index_select(cache.block_axis, index).cpu()

    sides: dict[str, Side] = {
        "plain_out": lambda: void(plain.copy_(dense, non_blocking=True)),
        "plain_in": lambda: void(dense.copy_(plain, non_blocking=True)),
        "extract": lambda: pages.extract(0, ids, pinned),
        "inject": lambda: pages.inject(0, ids, pinned),
        "extract_pageable": lambda: pages.extract(0, ids, pageable),
        "inject_pageable": lambda: pages.inject(0, ids, pageable),
        "layer_by_layer_out": layer_by_layer,
    }
    samples = bench.seconds(sides, shape)
    for name, seconds in samples.items():
        bench.figure(f"{kind}.{name}", [size / s / 1e9 for s in seconds], "GB/s")
    for ours, other, name in (
        ("extract", "plain_out", "extract_vs_pinned_copy"),
        ("inject", "plain_in", "inject_vs_pinned_copy"),
        ("extract_pageable", "plain_out", "extract_pageable_vs_pinned_copy"),
        ("inject_pageable", "plain_in", "inject_pageable_vs_pinned_copy"),
        ("extract", "layer_by_layer_out", "extract_vs_layer_by_layer"),
    ):
        bench.ratio(f"{kind}.{name}", samples[other], samples[ours])


def interference(bench: Bench, shape: Shape) -> None:
    """Seconds of a stream of matrix products beside each kind of copying, over the same stream alone."""
    cache, ids = Cache("layer_outermost", shape, 1), some_ids(shape, 3)
    arena, pinned = host(shape, True)
    _, pageable = host(shape, False)
    cache.pages.pin(arena.numpy().data)
    plain, dense = host(shape, True)[0], torch.ones(arena.numel(), dtype=torch.uint8, device=shape.device)
    side: Any = cuda.Stream() if shape.device.type == "cuda" else None
    finished(shape)
    done = cache.pages.mark()

    def plain_copy() -> None:
        if side is None:
            plain.copy_(dense)
            return
        with torch.cuda.stream(side):
            plain.copy_(dense, non_blocking=True)
            side.synchronize()

    beside: dict[str, Side | None] = {
        "alone": None,
        "pinned_copy": plain_copy,
        "extract": lambda: cache.pages.extract(0, ids, pinned, after=done),
        "inject": lambda: cache.pages.inject(0, ids, pinned, after=done),
        "extract_pageable": lambda: cache.pages.extract(0, ids, pageable, after=done),
    }
    dtype = torch.bfloat16 if shape.device.type == "cuda" else torch.float32
    square = torch.randn(shape.wide, shape.wide, device=shape.device, dtype=dtype)
    # Rows as of a prefill chunk, bound by arithmetic, and as of a decode batch, bound by memory.
    for work, rows, times in (("prefill", shape.wide, 60), ("decode", 32, 1500)):
        left = torch.randn(rows, shape.wide, device=shape.device, dtype=dtype)
        out = torch.empty_like(left)
        repeats = times if shape.device.type == "cuda" else max(2, times // 20)

        def products(left: torch.Tensor = left, out: torch.Tensor = out, repeats: int = repeats) -> None:
            for _ in range(repeats):
                torch.mm(left, square, out=out)

        def run(copy: Side | None, products: Side = products) -> None:
            with looping(copy):
                products()
                finished_here(shape)

        samples = bench.seconds({name: partial(run, copy) for name, copy in beside.items()}, shape)
        for name, seconds in samples.items():
            bench.figure(f"{work}.{name}", [s * 1e3 for s in seconds], "ms")
        for name in beside:
            if name != "alone":
                bench.ratio(f"{work}.slowdown_by_{name}", samples[name], samples["alone"])


def finished_here(shape: Shape) -> None:
    """Waits for the products only: copies go on in other streams."""
    if shape.device.type == "cuda":
        torch.cuda.current_stream().synchronize()


@contextmanager
def looping(copy: Side | None) -> Iterator[None]:
    """Copies again and again in another thread meanwhile."""
    stop, begun = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            while copy is not None and not stop.is_set():
                begun.set()
                copy()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=loop)
    if copy is not None:
        thread.start()
        begun.wait(10)
    try:
        yield
    finally:
        stop.set()
        if copy is not None:
            thread.join()
    if failures:
        raise failures[0]


def void(answer: object) -> None:
    """For sides whose answer is not asked for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="a small shape on the host")
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        parser.error("no CUDA device here: add --cpu to run the same on the host")
    shape = CPU if options.cpu else GPU
    torch.set_num_threads(1)
    bench = Bench(3 if options.quick else 9)
    for kind in KINDS:
        check(kind, shape)
        print(f"{kind}: every byte is right", file=sys.stderr)
    for kind in KINDS:
        rates(bench, kind, shape)
    interference(bench, shape)
    document = {
        "name": "pages_gpu",
        "device": torch.cuda.get_device_name() if shape.device.type == "cuda" else "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "runs": bench.runs,
        "exact": list(KINDS),
        "figures": bench.figures,
        "ratios": bench.ratios,
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
