"""One pass of a text through two models: a map, fitted and judged.

Owns the order in which documents pass: training until source layers are chosen, validation, the rest of
training with its checkpoints, then test, which chooses nothing and whose figures the map carries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from .fitting import Fitting
from .judging import Tally, attention_cosine
from .mapper import Mapper, Point
from .rows import Prefiller, Recipe, Rows, Sequences, rows_of
from .shapes import ModelKv, Prefill

__all__ = ["fit_map"]


def fit_map(
    source: Prefiller,
    target: Prefiller,
    text: Sequences,
    recipe: Recipe,
    *,
    checkpoints: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Mapper:
    """Fit over the text and judge on its test part; figures are in the map's facts.

    `checkpoints` are numbers of training rows at which a map is fitted for the curve of quality against
    calibration. Raises `ModelError` where the text does not suffice.
    """
    fitting = Fitting(source.kv, target.kv, recipe)
    points: list[Mapper] = []
    longest = 0
    left = sorted(checkpoints)

    def both(part: Sequence[tuple[str, Sequence[int]]]) -> Iterator[tuple[Rows, Prefill, Prefill]]:
        for document, ids in part:
            began = time.perf_counter()
            ours = source.prefill(ids)
            between = time.perf_counter()
            theirs = target.prefill(ids, queries=True)
            ended = time.perf_counter()
            rows = rows_of(document, ours, theirs, source.kv, target.kv, recipe)
            fitting.seconds["source prefill"] += between - began
            fitting.seconds["target prefill"] += ended - between
            fitting.seconds["strip and weigh"] += time.perf_counter() - ended
            yield rows, ours, theirs

    training = both(text.train)
    for rows, ours, _ in training:
        longest = max(longest, int(ours.positions.max()) + 1)
        fitting.train(rows)
        if fitting.ready:
            break
    fitting.choose()
    say(f"source layers are chosen on {fitting.rows} rows")
    for rows, _, _ in both(text.validation):
        fitting.validate(rows)
    for rows, ours, _ in training:
        longest = max(longest, int(ours.positions.max()) + 1)
        fitting.train(rows)
        if left and fitting.rows >= left[0]:
            left = [one for one in left if one > fitting.rows]
            points.append(fitting.fit(with_mlp=False))
            say(f"{fitting.rows} rows")
    documents = len({name for name, _ in text.train})
    mapper = fitting.fit(documents=documents, positions=longest)
    say(f"fitted on {fitting.rows} rows")
    return _judged(mapper, points, fitting, both(text.test), target.kv)


def _judged(
    mapper: Mapper,
    points: Sequence[Mapper],
    fitting: Fitting,
    test: Iterator[tuple[Rows, Prefill, Prefill]],
    target: ModelKv,
) -> Mapper:
    tallies = [_Tallies(len(target.layers)) for _ in (mapper, *points)]
    cosines: list[list[float]] = [[] for _ in target.layers]
    for rows, ours, theirs in test:
        began = time.perf_counter()
        for one, tally in zip((mapper, *points), tallies, strict=True):
            tally.add(one, rows)
        if theirs.queries:
            mapped = mapper.apply(ours, dtype=torch.float32, length=theirs.length)
            for index, layer in enumerate(mapped.layers):
                cosine = attention_cosine(
                    theirs.queries[index],
                    target.layers[index],
                    theirs.scales[index],
                    theirs.layers[index],
                    layer,
                )
                cosines[index].append(cosine)
        fitting.seconds["judge"] += time.perf_counter() - began
    facts = mapper.facts
    assert facts is not None  # fit() gives them
    curve = [
        Point(rows=one.facts.rows, keys_r2=_mean(tally.keys), values_r2=_mean(tally.values))
        for one, tally in zip((*points, mapper), (*tallies[1:], tallies[0]), strict=True)
        if one.facts is not None
    ]
    facts = msgspec.structs.replace(
        facts,
        keys_r2=tuple(tally.mean() for tally in tallies[0].keys),
        values_r2=tuple(tally.mean() for tally in tallies[0].values),
        attention_cosine=tuple(sum(one) / len(one) if one else None for one in cosines),
        curve=tuple(curve),
        seconds={name: round(value, 4) for name, value in fitting.seconds.items()},
    )
    return Mapper(mapper.outline, mapper.layers, facts)


@dataclass
class _Tallies:
    """R2 of every layer, keys and values."""

    layers: int
    keys: list[Tally] = field(init=False)
    values: list[Tally] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [Tally() for _ in range(self.layers)]
        self.values = [Tally() for _ in range(self.layers)]

    def add(self, mapper: Mapper, rows: Rows) -> None:
        for index, (layer, wiring) in enumerate(zip(mapper.layers, mapper.outline.wiring, strict=True)):
            for kind, line, mlp, tally in (
                ("keys", layer.keys, layer.keys_mlp, self.keys[index]),
                ("values", layer.values, layer.values_mlp, self.values[index]),
            ):
                x = wiring.gather(getattr(rows.source, kind)).float()
                native = getattr(rows.target, kind)[index]
                mapped = line(x) if mlp is None else line(x) + mlp(x)
                if not wiring.matched:
                    mapped = mapped[0].reshape(native.shape[1], native.shape[0], -1).transpose(0, 1)
                tally.add(native, mapped)


def _mean(tallies: Sequence[Tally]) -> float:
    return sum(one.mean() for one in tallies) / len(tallies)
