"""One pass of a text through two models: a map, fitted and judged.

Owns the order in which documents pass: training until source layers are chosen, validation, the rest of
training with its checkpoints, then test, which chooses nothing and whose figures the map carries. And where
in that order a fit stands: between any two sequences it can be kept, and goes on from there to the same map.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from .checkpoint import Checkpoint, Kept, named, under
from .file import layer_of
from .fitting import Fitting
from .judging import Tallies, Tally, attention_cosine
from .mapper import Facts, Mapper, Outline, Point
from .rows import Prefiller, Recipe, Rows, Sequences, rows_of
from .shapes import ModelKv, Prefill

__all__ = ["fit_map", "settings_of"]


def fit_map(
    source: Prefiller,
    target: Prefiller,
    text: Sequences,
    recipe: Recipe,
    *,
    checkpoints: Sequence[int] = (),
    keep: Checkpoint | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Mapper:
    """Fit over the text and judge on its test part; figures are in the map's facts.

    `checkpoints` are numbers of training rows at which a map is fitted for the curve of quality against
    calibration. `keep` is where the fit is kept while it runs, and from where it goes on when one was killed;
    its file stays when the fit is done. Raises `ModelError` where the text does not suffice, `UsageError`
    where what is kept is another fit's.
    """
    one = _Pass(source, target, text, recipe, checkpoints, keep, say)
    one.resume()
    return one.run()


def settings_of(
    source: ModelKv, target: ModelKv, text: Sequences, recipe: Recipe, checkpoints: Sequence[int]
) -> dict[str, str]:
    """All that decides a fit's result, by the names that a refused one is told."""
    found = {"curve": " ".join(map(str, sorted(checkpoints)))}
    for side, model in (("source", source), ("target", target)):
        found[side] = model.name
        for name in ("weights_revision", "tokenizer", "position"):
            found[f"{side} {name}"] = getattr(model, name)
    for name in ("train", "validation", "test"):
        digest = hashlib.sha256()
        for document, ids in getattr(text, name):
            digest.update(f"{document} {list(ids)}\n".encode())
        found[f"text for {name}"] = digest.hexdigest()[:16]
    for name in recipe.__struct_fields__:
        found[name] = str(getattr(recipe, name))
    return found


class _Pass:
    """Where a fit stands."""

    def __init__(
        self,
        source: Prefiller,
        target: Prefiller,
        text: Sequences,
        recipe: Recipe,
        checkpoints: Sequence[int],
        keep: Checkpoint | None,
        say: Callable[[str], None],
    ) -> None:
        self.source, self.target, self.text, self.recipe = source, target, text, recipe
        self.keep, self.say = keep, say
        self.fitting = Fitting(source.kv, target.kv, recipe)
        self.left = sorted(checkpoints)
        self.longest = 0
        self.done = {"train": 0, "validation": 0, "test": 0}
        """Sequences of each part that have passed."""
        self.points: list[Mapper] = []
        self.mapper: Mapper | None = None
        self.tallies: list[Tallies] = []
        self.cosines: list[list[float]] = [[] for _ in target.kv.layers]
        if keep is not None:
            keep.settings.update(settings_of(source.kv, target.kv, text, recipe, checkpoints))

    def run(self) -> Mapper:
        """From where it stands to the end."""
        fitting, text = self.fitting, self.text
        while not fitting.ready and self.done["train"] < len(text.train):
            self._train()
        if not fitting.ready:
            fitting.choose()
        if not self.done["validation"]:
            self.say(f"source layers are chosen on {fitting.rows} rows")
        while self.done["validation"] < len(text.validation):
            rows, _, _ = self._next("validation")
            fitting.validate(rows)
            self._passed("validation")
        while self.done["train"] < len(text.train):
            self._train()
        mapper = self.mapper
        if mapper is None:
            documents = len({name for name, _ in text.train})
            mapper = self.mapper = fitting.fit(documents=documents, positions=self.longest)
            self.tallies = [Tallies(len(self.target.kv.layers)) for _ in (mapper, *self.points)]
            self.say(f"fitted on {fitting.rows} rows")
        while self.done["test"] < len(text.test):
            self._judge(mapper)
        return self._figured(mapper)

    def resume(self) -> None:
        """Go on from what was kept, if anything was."""
        found = None if self.keep is None else self.keep.read()
        if found is None:
            return
        facts, kept = found
        self.done, self.left, self.longest = facts["done"], facts["left"], facts["longest"]
        self.cosines = facts["cosines"]
        self.fitting.take(facts["fitting"], under("fitting", kept))
        maps = [_map_of(one, under(f"maps.{number}", kept)) for number, one in enumerate(facts["maps"])]
        self.mapper = maps.pop(0) if facts["fitted"] else None
        self.points = maps
        self.tallies = [Tallies(len(self.target.kv.layers)) for _ in range(facts["tallies"])]
        for number, tallies in enumerate(self.tallies):
            tallies.take(under(f"tallies.{number}", kept))
        self.say("goes on behind " + ", ".join(f"{count} {part}" for part, count in self.done.items()))

    def write(self) -> None:
        """Keep all of it."""
        if self.keep is None:
            return
        maps = [*([] if self.mapper is None else [self.mapper]), *self.points]
        kept = named("fitting", self.fitting.tensors())
        for number, one in enumerate(maps):
            for index, layer in enumerate(one.layers):
                kept |= named(f"maps.{number}.layers.{index}", layer.tensors())
        for number, tallies in enumerate(self.tallies):
            kept |= named(f"tallies.{number}", tallies.tensors())
        facts = {
            "done": self.done,
            "left": self.left,
            "longest": self.longest,
            "cosines": self.cosines,
            "fitting": self.fitting.facts(),
            "fitted": self.mapper is not None,
            "maps": [
                {"outline": msgspec.to_builtins(one.outline), "facts": msgspec.to_builtins(one.facts)}
                for one in maps
            ],
            "tallies": len(self.tallies),
        }
        self.keep.write(facts, kept)

    def _next(self, part: str) -> tuple[Rows, Prefill, Prefill]:
        document, ids = getattr(self.text, part)[self.done[part]]
        seconds = self.fitting.seconds
        began = time.perf_counter()
        ours = self.source.prefill(ids)
        between = time.perf_counter()
        theirs = self.target.prefill(ids, queries=True)
        ended = time.perf_counter()
        rows = rows_of(document, ours, theirs, self.source.kv, self.target.kv, self.recipe)
        seconds["source prefill"] += between - began
        seconds["target prefill"] += ended - between
        seconds["strip and weigh"] += time.perf_counter() - ended
        return rows, ours, theirs

    def _passed(self, part: str) -> None:
        self.done[part] += 1
        if self.keep is not None and self.keep.due:
            began = time.perf_counter()
            self.write()
            self.fitting.seconds["checkpoints"] += time.perf_counter() - began

    def _train(self) -> None:
        rows, ours, _ = self._next("train")
        self.longest = max(self.longest, int(ours.positions.max()) + 1)
        chosen = self.fitting.ready
        self.fitting.train(rows)
        if chosen and self.left and self.fitting.rows >= self.left[0]:
            self.left = [one for one in self.left if one > self.fitting.rows]
            self.points.append(self.fitting.fit(with_mlp=False))
            self.say(f"{self.fitting.rows} rows")
        self._passed("train")

    def _judge(self, mapper: Mapper) -> None:
        rows, ours, theirs = self._next("test")
        began = time.perf_counter()
        for one, tally in zip((mapper, *self.points), self.tallies, strict=True):
            tally.add(one, rows)
        if theirs.queries:
            mapped = mapper.apply(ours, dtype=torch.float32, length=theirs.length)
            for index, layer in enumerate(mapped.layers):
                cosine = attention_cosine(
                    theirs.queries[index],
                    self.target.kv.layers[index],
                    theirs.scales[index],
                    theirs.layers[index],
                    layer,
                )
                self.cosines[index].append(cosine)
        self.fitting.seconds["judge"] += time.perf_counter() - began
        self._passed("test")

    def _figured(self, mapper: Mapper) -> Mapper:
        """The map with the figures of the test part."""
        facts, tallies = mapper.facts, self.tallies
        assert facts is not None  # fit() gives them
        curve = [
            Point(rows=one.facts.rows, keys_r2=_mean(tally.keys), values_r2=_mean(tally.values))
            for one, tally in zip((*self.points, mapper), (*tallies[1:], tallies[0]), strict=True)
            if one.facts is not None
        ]
        facts = msgspec.structs.replace(
            facts,
            keys_r2=tuple(tally.mean() for tally in tallies[0].keys),
            values_r2=tuple(tally.mean() for tally in tallies[0].values),
            attention_cosine=tuple(sum(one) / len(one) if one else None for one in self.cosines),
            curve=tuple(curve),
            seconds={name: round(value, 4) for name, value in self.fitting.seconds.items()},
        )
        return Mapper(mapper.outline, mapper.layers, facts)


def _map_of(one: Mapping[str, Any], tensors: Kept) -> Mapper:
    outline = msgspec.convert(one["outline"], Outline)
    layers = [layer_of(tensors, index) for index in range(len(outline.wiring))]
    return Mapper(outline, layers, msgspec.convert(one["facts"], Facts))


def _mean(tallies: Sequence[Tally]) -> float:
    return sum(one.mean() for one in tallies) / len(tallies)
