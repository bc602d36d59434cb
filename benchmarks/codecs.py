"""What codecs cost and what they save, on the KV of a real model: quality, speed, bytes and memory.

SmolLM2-135M-Instruct in float32 reads the beginning of twenty modules of Python's standard library, 512
tokens each. That KV goes through every codec in blocks of 32 tokens, and the model goes on from what came
back: over the next 64 tokens of the text, and 32 tokens of its own choice. Everything is compared with the
KV as it was computed; `raw` is the control and must show no difference. Speed is in CPU time, in bytes of
blocks as the engine has them, beside a plain copy of the same blocks.

    python benchmarks/codecs.py [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import cpu_seconds, options, spread

from kvferry.config import cache_dir
from kvferry.engines.transformers.build import block_layout
from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model
from kvferry.engines.transformers.runner import Runner
from kvferry.measure.demo.workload import Library
from kvferry.measure.quality.codecs import CodecQuality, measure_codecs, prefix_kv
from kvferry.store.codec import CODECS, BlockLayout, Codec, open_codec

PREFIX_TOKENS, SCORED_TOKENS, GREEDY_TOKENS = 512, 64, 32
BATCH_BYTES = 16 << 20
UNITS = {"nll_difference": "nats/token"}


class Figures:
    """Collects what was measured, tells it on stderr, and writes it."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.ratios: dict[str, dict[str, float]] = {}

    def add(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**spread(samples), "unit": unit}
        print(f"{name:36} {statistics.median(samples):14.5f} {unit}", file=sys.stderr)

    def ratio(self, name: str, samples: Sequence[float]) -> None:
        self.ratios[name] = spread(samples)
        print(f"{name:36} {statistics.median(samples):14.2f}", file=sys.stderr)

    def write(self, path: Path | None, runs: int) -> None:
        document = {
            "name": "codecs",
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "torch", "transformers")},
            },
            "runs": runs,
            "figures": self.figures,
            "ratios": self.ratios,
        }
        if path is not None:
            path.write_text(json.dumps(document, indent=2) + "\n")


def texts(runner: Runner, count: int) -> list[list[int]]:
    """Token ids of the beginnings of different modules."""
    wanted = PREFIX_TOKENS + SCORED_TOKENS + 1

    def encoded(text: str) -> list[int]:
        return list(runner.tokenizer.encode(text, verbose=False))

    drawn = Library(0, lambda text: len(encoded(text))).draw(count, wanted)
    return [encoded(prefix.document)[:wanted] for prefix in drawn]


def quality(figures: Figures, runner: Runner, prompts: Sequence[Sequence[int]]) -> None:
    """Every text through every codec: a figure is the median over the texts."""
    codecs = {name: open_codec(name, block_layout(runner)) for name in CODECS}
    found: dict[str, list[CodecQuality]] = {name: [] for name in codecs}
    for number, prompt in enumerate(prompts, 1):
        measured = measure_codecs(
            runner, prompt, codecs, prefix_tokens=PREFIX_TOKENS, greedy_tokens=GREEDY_TOKENS
        )
        for name, one in measured.items():
            found[name].append(one)
        print(f"{number} of {len(prompts)} texts", file=sys.stderr)
    for name, several in found.items():
        for field in fields(CodecQuality):
            samples = [getattr(one, field.name) for one in several]
            figures.add(f"{name}_{field.name}", samples, UNITS.get(field.name, "1"))
            if field.name != "worst_attention_error":
                figures.add(
                    f"{name}_mean_{field.name}", [statistics.fmean(samples)], UNITS.get(field.name, "1")
                )
        identical = sum(one.greedy_agreement == 1.0 for one in several)
        figures.add(f"{name}_greedy_identical", [identical], f"of {len(several)} texts")


def blocks_of(kv: torch.Tensor, layout: BlockLayout) -> list[memoryview]:
    """A batch of about 16 MiB of real blocks, each in memory of its own."""
    size = layout.block_tokens
    whole = kv.to(getattr(torch, layout.dtype))
    blocks = [whole[:, :, :, at : at + size].contiguous() for at in range(0, kv.shape[3], size)]
    wanted = max(1, BATCH_BYTES // layout.block_bytes)
    return [blocks[i % len(blocks)].clone().view(-1).view(torch.uint8).numpy().data for i in range(wanted)]


def speed(figures: Figures, kv: torch.Tensor, layout: BlockLayout, runs: int) -> None:
    """Encode and decode beside a copy, sides taking turns; a figure is the rate of one round."""
    blocks = blocks_of(kv, layout)
    into = [memoryview(bytearray(b"\1" * layout.block_bytes)) for _ in blocks]
    total = len(blocks) * layout.block_bytes
    kind = layout.dtype

    def copy() -> None:
        for block, target in zip(blocks, into, strict=True):
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(block, np.uint8))

    sides: dict[str, Callable[[], None]] = {f"memcpy_{kind}": copy}
    codecs = {name: open_codec(name, layout) for name in CODECS if name != "raw"}
    for name, codec in codecs.items():
        sides[f"{name}_encode_{kind}"] = encoder(codec, blocks)
        sides[f"{name}_decode_{kind}"] = decoder(codec, blocks, into)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, runs):
        for name in sides if number % 2 else reversed(sides):
            taken = cpu_seconds(sides[name], 1)
            if number >= 0:
                seconds[name].append(taken)
    for name, samples in seconds.items():
        figures.add(name, [total / taken / 1e9 for taken in samples], "GB/s")
    for name, codec in codecs.items():
        ours = seconds[f"{name}_decode_{kind}"]
        figures.ratio(
            f"{name}_decode_{kind}_vs_memcpy",
            [theirs / taken for taken, theirs in zip(ours, seconds[f"memcpy_{kind}"], strict=True)],
        )
        # Below this rate of a link, what the codec leaves out costs more than decoding does.
        saved = len(blocks) * (layout.block_bytes - codec.payload_bytes)
        figures.add(f"{name}_pays_below_{kind}", [saved / taken / 1e9 for taken in ours], "GB/s")


def encoder(codec: Codec, blocks: Sequence[memoryview]) -> Callable[[], None]:
    def encode() -> None:
        for block, slot in zip(blocks, codec.slots_for(blocks), strict=True):
            codec.encode_into(block, slot)

    return encode


def decoder(codec: Codec, blocks: Sequence[memoryview], into: Sequence[memoryview]) -> Callable[[], None]:
    encoder(codec, blocks)()

    def decode() -> None:
        for slot, target in zip(codec.slots_for(into), into, strict=True):
            codec.decode_into(slot, target)

    return decode


def room(figures: Figures, kv: torch.Tensor, layout: BlockLayout) -> None:
    """Bytes of an encoded block, and the memory that a thread needs for a batch of 16 MiB."""
    blocks = blocks_of(kv, layout)
    for name in CODECS:
        codec = open_codec(name, layout)
        figures.add(f"{name}_block_{layout.dtype}", [codec.payload_bytes], "bytes")
        figures.ratio(f"{name}_bytes_{layout.dtype}_vs_raw", [layout.block_bytes / codec.payload_bytes])
        if name == "raw":
            continue
        # Working memory belongs to a thread: a fresh one shows all of it.
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        thread = threading.Thread(target=lambda c=codec: decoder(c, blocks, blocks)())
        thread.start()
        thread.join()
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        figures.add(f"{name}_peak_memory_{layout.dtype}", [peak], "bytes")


def main() -> None:
    chosen = options(__doc__)
    runs = 5 if chosen.quick else 31
    runner = Runner(resolve_model(DEFAULT_MODEL, cache_dir()), name=DEFAULT_MODEL, threads=1)
    prompts = texts(runner, 2 if chosen.quick else 20)
    figures = Figures()
    kv = prefix_kv(runner, prompts[0][:PREFIX_TOKENS])
    ours = block_layout(runner)
    for dtype in ("float32", "float16", "bfloat16"):
        layout = BlockLayout(ours.layers, ours.kv_heads, ours.block_tokens, ours.head_dim, dtype)
        speed(figures, kv, layout, runs)
        room(figures, kv, layout)
    quality(figures, runner, prompts)
    figures.write(chosen.json, runs)


if __name__ == "__main__":
    main()
