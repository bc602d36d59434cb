"""A map beside the prefill that it replaces at 8k and 32k tokens, and the link to the host, on one GPU.

Target: the shape of Qwen3-8B (36 layers, 32 query and 8 KV heads of 128), source: of Qwen3-4B, random weights
in bf16 by transformers' own configurations; what a map costs does not depend on the numbers in it. Maps of
two source layers, with local and with full inputs, also random. The map's result on the device is compared
with the host's first. Then the target's prefill and the maps take turns, and ratios are taken within a
round; then copies of the mapped KV's size between pinned host memory and the device, each way and both at
once. Under four minutes. `--cpu` runs the same on a host with a small shape, to see that it works.

    PYTHONPATH=src python benchmarks/handoff_gpu.py [--cpu] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from kvferry.handoff.mapping.heads import Wiring
from kvferry.handoff.mapping.mapper import LayerMap, Mapper, Outline
from kvferry.handoff.mapping.ridge import Line
from kvferry.handoff.mapping.ropes import ropes_of
from kvferry.handoff.mapping.shapes import LayerKv, LayerShape, ModelKv, Prefill

# Torch gives its streams no types.
cuda: Any = torch.cuda


@dataclass(frozen=True)
class Model:
    """One model's shape."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    width: int
    vocabulary: int = 151_936

    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.width,
            max_position_embeddings=40_960,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=False,
        )

    def kv(self) -> ModelKv:
        ropes = ropes_of(self.config().to_dict())
        layers = tuple(
            LayerShape(
                kv_heads=self.kv_heads,
                query_heads=self.heads,
                key_width=self.width,
                value_width=self.width,
                rope=rope,
            )
            for rope in ropes
        )
        return ModelKv(name=self.name, weights_revision="random", tokenizer="t", position="p", layers=layers)


@dataclass(frozen=True)
class Setup:
    """What is measured, and where."""

    device: torch.device
    source: Model
    target: Model
    tokens: tuple[int, ...]
    copied: int
    """Bytes of one copy."""
    rounds: int


GPU = Setup(
    torch.device("cuda"),
    Model("Qwen3-4B's shape", 36, 2560, 9728, 32, 8, 128),
    Model("Qwen3-8B's shape", 36, 4096, 12_288, 32, 8, 128),
    (8192, 32_768),
    1 << 30,
    5,
)
CPU = Setup(
    torch.device("cpu"),
    Model("small", 3, 64, 128, 4, 2, 16, 512),
    Model("less small", 4, 96, 192, 4, 2, 16, 512),
    (128, 256),
    1 << 22,
    2,
)


@dataclass
class Figures:
    """Collects what was measured, and tells it on stderr."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**_spread(samples), "unit": unit}
        print(f"{name:40} {statistics.median(samples):14.4f} {unit}", file=sys.stderr)

    def ratio(self, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
        """Theirs over ours, round by round."""
        found = [b / a for a, b in zip(ours, theirs, strict=True)]
        self.ratios[name] = _spread(found)
        print(f"{name:40} {statistics.median(found):14.2f}", file=sys.stderr)


def _spread(samples: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


@contextmanager
def numbers_in(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def model_of(shape: Model, device: torch.device) -> Any:
    with numbers_in(torch.bfloat16), torch.device(device):
        model = Qwen3ForCausalLM._from_config(shape.config(), attn_implementation="sdpa")
    return model.eval()


def map_of(source: Model, target: Model, full: bool, device: torch.device) -> Mapper:
    """Random, of two source layers for each target layer."""
    dice = torch.Generator(device).manual_seed(1)
    wiring, layers = [], []
    for layer in range(target.layers):
        nearest = min(source.layers - 1, layer * source.layers // target.layers)
        sources = (nearest, nearest - 1 if nearest else 1)
        own = tuple(range(target.kv_heads))
        wiring.append(Wiring(sources=sources, matched=() if full else (own, own)))
        inputs = 2 * source.width * (source.kv_heads if full else 1)
        panels, outputs = (1, target.kv_heads * target.width) if full else (target.kv_heads, target.width)

        def line(panels: int = panels, inputs: int = inputs, outputs: int = outputs) -> Line:
            weight = torch.randn(panels, inputs, outputs, device=device, generator=dice) / inputs**0.5
            return Line(weight, torch.randn(panels, outputs, device=device, generator=dice))

        layers.append(LayerMap(line(), line()))
    return Mapper(Outline(source=source.kv(), target=target.kv(), wiring=tuple(wiring)), layers)


def source_kv(shape: Model, tokens: int, device: torch.device) -> Prefill:
    dice = torch.Generator(device).manual_seed(2)

    def part() -> torch.Tensor:
        size = (shape.kv_heads, tokens, shape.width)
        return torch.randn(size, device=device, generator=dice, dtype=torch.bfloat16)

    layers = [LayerKv(part(), part()) for _ in range(shape.layers)]
    return Prefill(layers, torch.arange(tokens, device=device))


def finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(side: Callable[[], object], device: torch.device) -> float:
    finished(device)
    began = time.perf_counter()
    side()
    finished(device)
    return time.perf_counter() - began


def on_host(mapper: Mapper) -> Mapper:
    def line(one: Line) -> Line:
        return Line(one.weight.cpu(), one.bias.cpu())

    return Mapper(mapper.outline, [LayerMap(line(one.keys), line(one.values)) for one in mapper.layers])


def check(mapper: Mapper, setup: Setup) -> float:
    """Largest difference from the host's result over its largest number, at positions far from 0."""
    have = source_kv(setup.source, 64, setup.device)
    positions = have.positions + 30_000
    found = mapper.apply(have, positions=positions)
    layers = [LayerKv(layer.keys.cpu(), layer.values.cpu()) for layer in have.layers]
    own = on_host(mapper).apply(Prefill(layers, have.positions.cpu()), positions=positions.cpu())
    worst = 0.0
    for one, other in zip(found.layers, own.layers, strict=True):
        for a, b in ((one.keys, other.keys), (one.values, other.values)):
            difference = (a.cpu().float() - b.float()).abs().max() / b.float().abs().max()
            worst = max(worst, float(difference))
    if not worst < 0.02:
        raise SystemExit(f"the map's result on the device differs from the host's by {worst:.3g}")
    return worst


def mapping(figures: Figures, setup: Setup, model: Any, maps: dict[str, Mapper]) -> None:
    for tokens in setup.tokens:
        have = source_kv(setup.source, tokens, setup.device)
        ids = torch.arange(tokens, device=setup.device)[None] % setup.target.vocabulary

        def prefill(ids: torch.Tensor = ids) -> None:
            model(input_ids=ids, use_cache=True, logits_to_keep=1)

        sides: dict[str, Callable[[], object]] = {"prefill": prefill}
        for name, mapper in maps.items():
            sides[f"{name}_apply"] = lambda mapper=mapper, have=have: mapper.apply(have)
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(-1, setup.rounds):
            for name in sides if number % 2 else reversed(sides):
                seconds = seconds_of(sides[name], setup.device)
                if number >= 0:
                    taken[name].append(seconds)
        for name, samples in taken.items():
            figures.add(f"{name}_{tokens}", [1e3 * one for one in samples], "ms")
        for name in maps:
            figures.ratio(f"{name}_apply_vs_prefill_{tokens}", taken[f"{name}_apply"], taken["prefill"])
        figures.ratio(f"head_local_apply_vs_full_{tokens}", taken["local_apply"], taken["full_apply"])
        size = setup.target.layers * 2 * setup.target.kv_heads * tokens * setup.target.width * 2
        figures.add(f"mapped_bytes_{tokens}", [size], "bytes")
        figures.add(f"local_rate_{tokens}", [size / one / 1e9 for one in taken["local_apply"]], "GB/s of KV")
        del have


def copies(figures: Figures, setup: Setup) -> None:
    """Host to device and back, pinned, alone and both at once."""
    pinned = setup.device.type == "cuda"
    here = [torch.ones(setup.copied, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    there = [torch.ones(setup.copied, dtype=torch.uint8, device=setup.device) for _ in range(2)]
    streams = [cuda.Stream() for _ in range(2)] if pinned else []

    def up() -> None:
        there[0].copy_(here[0], non_blocking=True)

    def down() -> None:
        here[1].copy_(there[1], non_blocking=True)

    def both() -> None:
        if not streams:
            up()
            down()
            return
        for stream, side in zip(streams, (up, down), strict=True):
            with cuda.stream(stream):
                side()

    for name, side, times in (("host_to_device", up, 1), ("device_to_host", down, 1), ("both_ways", both, 2)):
        seconds_of(side, setup.device)
        rates = [times * setup.copied / seconds_of(side, setup.device) / 1e9 for _ in range(2 * setup.rounds)]
        figures.add(f"pinned_{name}", rates, "GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="a small shape on the host")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--json", metavar="FILE", type=Path)
    chosen = parser.parse_args()
    if not chosen.cpu and not torch.cuda.is_available():
        raise SystemExit("no GPU is there: --cpu runs a small shape on the host")
    setup = CPU if chosen.cpu else GPU
    if chosen.quick:
        setup = Setup(setup.device, setup.source, setup.target, setup.tokens, setup.copied, 2)
    if setup.device.type == "cpu":
        torch.set_num_threads(1)
    figures = Figures()
    with torch.inference_mode():
        maps = {
            name: map_of(setup.source, setup.target, full, setup.device)
            for name, full in (("local", False), ("full", True))
        }
        for name, mapper in maps.items():
            figures.add(f"{name}_differs_from_host", [check(mapper, setup)], "of the largest number")
            figures.add(f"{name}_map_bytes", [mapper.nbytes], "bytes")
        copies(figures, setup)
        mapping(figures, setup, model_of(setup.target, setup.device), maps)
    if chosen.json is not None:
        device = torch.cuda.get_device_name() if setup.device.type == "cuda" else platform.processor()
        document = {
            "name": "handoff_gpu",
            "device": device,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers")},
            },
            "runs": setup.rounds,
            "figures": figures.figures,
            "ratios": figures.ratios,
        }
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
