"""A map in the making: what a pass over documents leaves behind, and the best map from it.

Owns the order of choices. The first training rows are held until there are enough to choose source layers on;
then they, and all later ones, only pass through sums. Validation rows choose the number of source layers and
the lambdas. What a whole pass leaves behind serves every smaller number of source layers too, since their
inputs are the first columns of the same sums.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from ... import __version__
from ...errors import ModelError
from .checkpoint import Kept, named, under
from .heads import Wiring
from .layers import Side, score_layers, wire
from .mapper import Facts, LayerMap, Mapper, Outline
from .mlp import improve
from .ridge import Line, best_line
from .rows import Recipe, Rows
from .shapes import ModelKv
from .sums import LayerSums, Thinned

__all__ = ["Fitting"]


class Fitting:
    """A map in the making. Feed `train` and `validate`, then `fit`; then `test` what came out."""

    def __init__(self, source: ModelKv, target: ModelKv, recipe: Recipe) -> None:
        self.source, self.target, self.recipe = source, target, recipe
        self.wiring: list[Wiring] | None = None
        self.rows = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._waiting: list[Rows] = []
        self._fitted: list[LayerSums] = []
        self._held: list[LayerSums] = []
        self._rows_for_mlp = Thinned(recipe.mlp_rows)
        self._held_for_mlp = Thinned(max(1, recipe.mlp_rows // 4))

    @property
    def ready(self) -> bool:
        """Whether source layers are chosen."""
        return self.wiring is not None

    @property
    def nbytes(self) -> int:
        """Memory that the sums hold."""
        return sum(one.nbytes for one in (*self._fitted, *self._held))

    def facts(self) -> dict[str, Any]:
        """What it has besides `tensors`, as JSON may hold it."""
        return {
            "rows": self.rows,
            "seconds": dict(self.seconds),
            "waiting": [rows.document for rows in self._waiting],
            "wiring": None if self.wiring is None else msgspec.to_builtins(self.wiring),
        }

    def tensors(self) -> Kept:
        """What it has collected, by name."""
        found: Kept = {}
        for number, rows in enumerate(self._waiting):
            found |= named(f"waiting.{number}", rows.tensors())
        for name, sums in (("fitted", self._fitted), ("held", self._held)):
            for index, one in enumerate(sums):
                found |= named(f"{name}.{index}", one.tensors())
        found |= named("mlp.rows", self._rows_for_mlp.tensors())
        found |= named("mlp.held", self._held_for_mlp.tensors())
        return found

    def take(self, facts: Mapping[str, Any], tensors: Kept) -> None:
        """Be the fitting that gave these `facts` and `tensors`, of equal models and recipe."""
        self.rows = int(facts["rows"])
        self.seconds = defaultdict(float, facts["seconds"])
        self._waiting = [
            Rows.of(document, under(f"waiting.{number}", tensors))
            for number, document in enumerate(facts["waiting"])
        ]
        self._rows_for_mlp.take(under("mlp.rows", tensors))
        self._held_for_mlp.take(under("mlp.held", tensors))
        if facts["wiring"] is None:
            return
        self.wiring = msgspec.convert(facts["wiring"], list[Wiring])
        self._fitted, self._held = (
            [self._sums(index) for index in range(len(self.wiring))] for _ in ("fitted", "held")
        )
        for name, sums in (("fitted", self._fitted), ("held", self._held)):
            for index, one in enumerate(sums):
                one.take(under(f"{name}.{index}", tensors))

    def train(self, rows: Rows) -> None:
        """Fit on these rows."""
        self.rows += rows.count
        if self.wiring is None:
            self._waiting.append(rows)
            if self.rows >= self.recipe.warm_rows:
                self.choose()
            return
        self._take(rows)

    def choose(self) -> None:
        """Choose source layers on what has come; happens by itself once enough has."""
        if self.wiring is not None:
            return
        with self._timed("choose layers"):
            fitted, judged = _by_document(self._waiting)
            scores = score_layers(
                _laid([rows.source for rows in self._waiting]),
                _laid([rows.target for rows in self._waiting]),
                fitted,
                judged,
            )
            most = min(self.recipe.most_layers, len(self.source.layers))
            self.wiring = wire(scores, most, self.recipe.inputs)
        self._fitted = [self._sums(index) for index in range(len(self.wiring))]
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._take(rows)
        self._held = [one.like() for one in self._fitted]

    def validate(self, rows: Rows) -> None:
        """Choose lambdas and the number of source layers on these rows. Comes after layers are chosen."""
        if self.wiring is None:
            raise ModelError("validation rows came before source layers were chosen: train first")
        with self._timed("statistics"):
            for index, sums in enumerate(self._held):
                sums.add(rows, index)
        if self.recipe.mlp is not None:
            self._held_for_mlp.add(rows)

    def fit(
        self,
        *,
        documents: int = 0,
        positions: int = 0,
        with_mlp: bool = True,
        source_layers: int | None = None,
        lambdas: Sequence[float] | None = None,
    ) -> Mapper:
        """The best map so far; `source_layers` and `lambdas` in place of the recipe's.

        Raises `ModelError` before validation rows have come.
        """
        self.choose()
        assert self.wiring is not None  # choose() sets it or raises
        if not self._held or not self._held[0].rows:
            raise ModelError("no validation rows have come: nothing can be chosen on them")
        most = len(self.wiring[0].sources)
        wanted = self.recipe.source_layers if source_layers is None else source_layers
        counts = range(1, most + 1) if wanted is None else (min(wanted, most),)
        tried = self.recipe.lambdas if lambdas is None else lambdas
        with self._timed("solve"):
            solved = [
                (count, [self._solve(index, count, tried) for index in range(len(self.wiring))])
                for count in counts
            ]
            count, layers = max(solved, key=lambda one: sum(layer.score for layer in one[1]))
        wiring = [one.first(count) for one in self.wiring]
        maps = [LayerMap(layer.keys, layer.values) for layer in layers]
        if with_mlp and self.recipe.mlp is not None:
            with self._timed("mlp"):
                maps = [self._with_mlp(index, wiring[index], one) for index, one in enumerate(maps)]
        facts = Facts(
            kvferry=__version__,
            rows=self.rows,
            documents=documents,
            positions=positions,
            inputs=self.recipe.inputs,
            weighted=self.recipe.weighted,
            source_layers=count,
            parameters_per_head=max(one.keys.weight.shape[1] for one in maps),
            lambdas=tuple(layer.lambdas for layer in layers),
            keys_r2=tuple(layer.keys_r2 for layer in layers),
            values_r2=tuple(layer.values_r2 for layer in layers),
            attention_cosine=(),
        )
        outline = Outline(
            source=self.source, target=self.target, wiring=tuple(wiring), stripped=self.recipe.stripped
        )
        return Mapper(outline, maps, facts)

    def _take(self, rows: Rows) -> None:
        with self._timed("statistics"):
            for index, sums in enumerate(self._fitted):
                sums.add(rows, index)
        if self.recipe.mlp is not None:
            self._rows_for_mlp.add(rows)

    def _sums(self, index: int) -> LayerSums:
        assert self.wiring is not None
        wiring, shape = self.wiring[index], self.target.layers[index]
        heads = [layer.kv_heads for layer in self.source.layers]
        return LayerSums(
            wiring,
            shape.kv_heads,
            wiring.width(heads, [layer.key_width for layer in self.source.layers]),
            wiring.width(heads, [layer.value_width for layer in self.source.layers]),
            self.recipe.weighted,
        )

    def _solve(self, index: int, count: int, tried: Sequence[float]) -> _Solved:
        assert self.wiring is not None
        heads = self.target.layers[index].kv_heads
        part = self.wiring[index].first(count)
        source_heads = [layer.kv_heads for layer in self.source.layers]
        lines, lambdas, scores = [], [], []
        for kind, width in (
            ("keys", part.width(source_heads, [layer.key_width for layer in self.source.layers])),
            ("values", part.width(source_heads, [layer.value_width for layer in self.source.layers])),
        ):
            fitted, alpha = self._fitted[index].moments(kind, width, None)
            held, _ = self._held[index].moments(kind, width, alpha)
            line, chosen, score = best_line(fitted, held, heads, tried)
            if not part.matched and line.weight.shape[0] > 1:
                line = line.joined()
            # Laid out as a file gives them back: a map that was read computes the same bits.
            lines.append(Line(line.weight.float().contiguous(), line.bias.float().contiguous()))
            lambdas.append(chosen)
            scores.append(score)
        return _Solved(lines[0], lines[1], (lambdas[0], lambdas[1]), scores[0], scores[1])

    def _with_mlp(self, index: int, wiring: Wiring, layer: LayerMap) -> LayerMap:
        assert self.recipe.mlp is not None
        found = []
        for kind, line in (("keys", layer.keys), ("values", layer.values)):
            x, y = self._rows_for_mlp.laid(kind, index, wiring)
            held_x, held_y = self._held_for_mlp.laid(kind, index, wiring)
            found.append(improve(line, x, y, held_x, held_y, self.recipe.mlp)[0])
        return LayerMap(layer.keys, layer.values, found[0], found[1])

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Solved:
    keys: Line
    values: Line
    lambdas: tuple[float, float]
    keys_r2: float
    values_r2: float

    @property
    def score(self) -> float:
        return self.keys_r2 + self.values_r2


def _by_document(waiting: Sequence[Rows]) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of rows to fit on and to judge on: every second document; halves where there is only one."""
    names = list(dict.fromkeys(rows.document for rows in waiting))
    spread = torch.cat([torch.full((rows.count,), names.index(rows.document)) for rows in waiting])
    if len(names) == 1:
        spread = (torch.arange(len(spread)) >= len(spread) // 2).long()
    at = torch.arange(len(spread))
    return at[spread % 2 == 0], at[spread % 2 == 1]


def _laid(sides: Sequence[Side]) -> Side:
    def lay(kind: str) -> list[torch.Tensor]:
        parts: list[Sequence[torch.Tensor]] = [getattr(side, kind) for side in sides]
        return [torch.cat(list(layer), dim=1) for layer in zip(*parts, strict=True)]

    return Side(lay("keys"), lay("values"))
