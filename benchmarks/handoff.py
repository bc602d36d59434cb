"""A map from one model's KV to another's: what it costs beside the prefill that it replaces.

SmolLM2-135M-Instruct to a synthetic sibling of it, made here: two of 30 layers dropped, 5 % noise on every
matrix. Both models read the same text once; then four maps are fitted on the same rows, with local or full
inputs, weighted or not, so that the two ideas of arXiv 2609.00891 can be told apart; then the maps and the
sibling's own prefill take turns on one prompt of 2,048 tokens, and ratios are taken within a round. The long
form adds held-out and in-sample R2 over the number of source layers and lambda. One thread.

    python benchmarks/handoff.py [--quick] [--json FILE]
"""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import platform
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from side_by_side import options, spread

from kvferry.config import cache_dir
from kvferry.engines.transformers.capture import Captured, open_captured
from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model
from kvferry.handoff.mapping.file import save_map
from kvferry.handoff.mapping.fitting import Fitting
from kvferry.handoff.mapping.judging import Tallies, attention_cosine
from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.ridge import LAMBDAS
from kvferry.handoff.mapping.rows import Recipe, Rows, Sequences, rows_of
from kvferry.handoff.mapping.shapes import Prefill
from kvferry.handoff.mapping.texts import cut_sequences, read_documents, split_documents

DROPPED, NOISE = (10, 20), 0.05
PROMPT_TOKENS = 2048
ARMS = {
    "local_weighted": ("local", True),
    "local_plain": ("local", False),
    "full_weighted": ("full", True),
    "full_plain": ("full", False),
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    tokens: int
    length: int
    most_layers: int
    rounds: int
    grid: bool


QUICK = Size(tokens=3000, length=256, most_layers=2, rounds=1, grid=False)
LONG = Size(tokens=6000, length=256, most_layers=4, rounds=5, grid=True)


@dataclass
class Figures:
    """Collects what was measured, and tells it on stderr."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**spread(samples), "unit": unit}
        print(f"{name:44} {statistics.median(samples):16.4f} {unit}", file=sys.stderr)

    def ratio(self, name: str, samples: Sequence[float]) -> None:
        self.ratios[name] = spread(samples)
        print(f"{name:44} {statistics.median(samples):16.2f}", file=sys.stderr)


class Peak:
    """Memory that a block took beyond what was held when it began, in bytes; None where it cannot be told."""

    def __enter__(self) -> Peak:
        gc.collect()
        with suppress(OSError, AttributeError):
            # What was freed before and not given back would hide as much.
            ctypes.CDLL(None).malloc_trim(0)
        self.bytes: int | None = None
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _status("VmRSS")
        except OSError:
            self._before = -1
        return self

    def __exit__(self, *_: object) -> None:
        if self._before >= 0:
            self.bytes = max(0, _status("VmHWM") - self._before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name}")


def sibling_of(one: Captured) -> Captured:
    """The model without two layers and with noise on its matrices: synthetic, and called so."""
    model = copy.deepcopy(one.model)
    kept = [layer for at, layer in enumerate(model.model.layers) if at not in DROPPED]
    for at, layer in enumerate(kept):
        layer.self_attn.layer_idx = at
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[: len(kept)]
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter += NOISE * parameter.std() * torch.randn(parameter.shape, generator=dice)
    return Captured(
        model,
        name="synthetic sibling",
        weights_revision="synthetic",
        tokenizer_revision=one.kv.tokenizer,
        tokenizer=one.tokenizer,
    )


@dataclass
class Seen:
    """The text as both models read it, once, for every map."""

    train: list[Rows] = field(default_factory=list)
    validation: list[Rows] = field(default_factory=list)
    test: list[Rows] = field(default_factory=list)
    judged: list[tuple[Prefill, Prefill]] = field(default_factory=list)
    """Both models' prefills of the test part."""
    seconds: float = 0.0


def text_of(one: Captured, size: Size) -> Sequences:
    documents = read_documents(Path(sysconfig.get_paths()["stdlib"]) / "email")
    return cut_sequences(
        split_documents(documents), lambda _, text: one.encode(text), size.tokens, size.length
    )


def read(source: Captured, target: Captured, text: Sequences) -> Seen:
    seen, recipe = Seen(), Recipe()
    began = time.perf_counter()
    for part in ("train", "validation", "test"):
        for document, ids in getattr(text, part):
            ours, theirs = source.prefill(ids), target.prefill(ids, queries=True)
            getattr(seen, part).append(rows_of(document, ours, theirs, source.kv, target.kv, recipe))
            if part == "test":
                seen.judged.append((ours, theirs))
    seen.seconds = time.perf_counter() - began
    return seen


def fitted(source: Captured, target: Captured, seen: Seen, arm: str, size: Size) -> Fitting:
    inputs, weighted = ARMS[arm]
    recipe = Recipe(
        inputs=inputs,  # type: ignore[arg-type]
        weighted=weighted,
        most_layers=size.most_layers,
        warm_rows=max(256, size.tokens // 8),
    )
    fitting = Fitting(source.kv, target.kv, recipe)
    for rows in seen.train:
        fitting.train(rows)
    fitting.choose()
    for rows in seen.validation:
        fitting.validate(rows)
    return fitting


def build(
    figures: Figures, source: Captured, target: Captured, seen: Seen, size: Size
) -> dict[str, tuple[Fitting, Mapper]]:
    """Every arm's map of the same number of source layers, and what building it took."""
    found = {}
    for arm in ARMS:
        with Peak() as peak:
            fitting = fitted(source, target, seen, arm, size)
            before = fitting.seconds["solve"]
            mapper = fitting.fit(source_layers=size.most_layers)
        found[arm] = fitting, mapper
        figures.add(f"{arm}_choose_layers_seconds", [fitting.seconds["choose layers"]], "s")
        figures.add(f"{arm}_sums_seconds", [fitting.seconds["statistics"]], "s")
        figures.add(f"{arm}_solve_seconds", [fitting.seconds["solve"] - before], "s")
        figures.add(f"{arm}_sums_bytes", [fitting.nbytes], "bytes")
        if peak.bytes is not None:
            figures.add(f"{arm}_build_peak_bytes", [peak.bytes], "bytes")
        with tempfile.TemporaryDirectory() as folder:
            figures.add(f"{arm}_file_bytes", [save_map(mapper, Path(folder) / "map")], "bytes")
        tallies = Tallies(len(target.kv.layers))
        for rows in seen.test:
            tallies.add(mapper, rows)
        figures.add(
            f"{arm}_rows_per_parameter", [mapper.facts.rows_per_parameter if mapper.facts else 0], "1"
        )
        for kind in ("keys", "values"):
            r2 = [tally.mean() for tally in getattr(tallies, kind)]
            figures.add(f"{arm}_test_r2_of_{kind}", [statistics.fmean(r2)], "1")
        cosines = attention_of(mapper, target, seen)
        figures.add(f"{arm}_attention_cosine", [statistics.fmean(cosines)], "1")
        figures.add(f"{arm}_attention_cosine_worst_layer", [min(cosines)], "1")
    return found


def attention_of(mapper: Mapper, target: Captured, seen: Seen) -> list[float]:
    """Mean cosine of each layer's attention output on the test part."""
    found: list[list[float]] = [[] for _ in target.kv.layers]
    for ours, theirs in seen.judged:
        mapped = mapper.apply(ours, length=theirs.length)
        for index, layer in enumerate(mapped.layers):
            shape, native = target.kv.layers[index], theirs.layers[index]
            one = attention_cosine(theirs.queries[index], shape, theirs.scales[index], native, layer)
            found[index].append(one)
    return [statistics.fmean(one) for one in found]


def trade_off(figures: Figures, target: Captured, seen: Seen, arm: str, fitting: Fitting, most: int) -> None:
    """R2 over source layers and lambda, on rows that nothing was fitted on and on some that it was."""
    for count in range(1, most + 1):
        for value in LAMBDAS:
            mapper = fitting.fit(source_layers=count, lambdas=(value,))
            for part, several in (("test", seen.test), ("train", seen.train[::4])):
                tallies = Tallies(len(target.kv.layers))
                for rows in several:
                    tallies.add(mapper, rows)
                for kind in ("keys", "values"):
                    r2 = statistics.fmean(tally.mean() for tally in getattr(tallies, kind))
                    figures.add(f"{arm}_k{count}_lambda{value:g}_{part}_r2_of_{kind}", [r2], "1")


def speed(
    figures: Figures,
    source: Captured,
    target: Captured,
    maps: dict[str, Mapper],
    ids: Sequence[int],
    rounds: int,
) -> dict[str, list[float]]:
    """Seconds of the target's prefill and of each map, by round; a first round warms up."""
    have = source.prefill(ids)
    taken: dict[str, list[float]] = {name: [] for name in ("prefill", *maps)}
    for number in range(-1, rounds):
        sides = ["prefill", *maps] if number % 2 else [*reversed(maps), "prefill"]
        for name in sides:
            began = time.perf_counter()
            if name == "prefill":
                target.prefill(ids)
            else:
                maps[name].apply(have)
            if number >= 0:
                taken[name].append(time.perf_counter() - began)
    for name, samples in taken.items():
        figures.add(
            f"{name}_seconds_at_{len(ids)}" if name == "prefill" else f"{name}_apply_seconds", samples, "s"
        )
    for name, mapper in maps.items():
        with Peak() as peak:
            mapped = mapper.apply(have)
        size = sum(part.nbytes for layer in mapped.layers for part in (layer.keys, layer.values))
        figures.add("mapped_bytes", [size], "bytes")
        if peak.bytes is not None:
            figures.add(f"{name}_apply_peak_bytes", [peak.bytes], "bytes")
        del mapped
    return taken


def main() -> None:
    chosen = options(__doc__)
    size = QUICK if chosen.quick else LONG
    torch.set_num_threads(1)
    source = open_captured(resolve_model(DEFAULT_MODEL, cache_dir()), name=DEFAULT_MODEL, threads=1)
    target = sibling_of(source)
    figures = Figures()
    figures.add("strip_error", [source.check_strip(), target.check_strip()], "of the largest key")
    text = text_of(source, size)
    with torch.inference_mode():
        seen = read(source, target, text)
        figures.add("both_prefills_of_the_text_seconds", [seen.seconds], "s")
        found = build(figures, source, target, seen, size)
        ids = [token for _, part in (*text.train, *text.validation) for token in part][:PROMPT_TOKENS]
        maps = {arm: mapper for arm, (_, mapper) in found.items()}
        taken = speed(figures, source, target, maps, ids, size.rounds)

        def against(other: Sequence[float], ours: Sequence[float]) -> list[float]:
            return [a / b for a, b in zip(other, ours, strict=True)]

        figures.ratio("apply_vs_prefill", against(taken["prefill"], taken["local_weighted"]))
        figures.ratio("full_apply_vs_prefill", against(taken["prefill"], taken["full_weighted"]))
        figures.ratio("head_local_apply_vs_full", against(taken["full_weighted"], taken["local_weighted"]))
        for name, kind in (("size", "file_bytes"), ("sums", "sums_seconds"), ("solve", "solve_seconds")):
            full, local = (
                figures.figures[f"{inputs}_weighted_{kind}"]["median"] for inputs in ("full", "local")
            )
            figures.ratio(f"head_local_{name}_vs_full", [full / local])
        if size.grid:
            for arm in ("local_plain", "full_plain"):
                trade_off(figures, target, seen, arm, found[arm][0], size.most_layers)
    if chosen.json is not None:
        document = {
            "name": "handoff",
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers")},
            },
            "runs": size.rounds,
            "figures": figures.figures,
            "ratios": figures.ratios,
        }
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
