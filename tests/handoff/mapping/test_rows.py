"""Recipes, texts and rows that cannot be are refused."""

from __future__ import annotations

import pytest

from kvferry.errors import ModelError
from kvferry.handoff.mapping.rows import Recipe, Sequences, rows_of

from .planted import Planted, Source, model_kv

SOURCE, TARGET = model_kv("s", 2, 1, 4), model_kv("t", 1, 1, 4)


def test_without_queries_errors_cannot_be_weighted() -> None:
    source = Source(SOURCE)
    target = Planted(TARGET, source, (0,), (0,))
    with pytest.raises(ModelError, match="unweighted"):
        rows_of("d", source.prefill([1, 2]), target.prefill([1, 2]), SOURCE, TARGET, Recipe())


def test_a_document_on_two_sides_is_refused() -> None:
    with pytest.raises(ModelError, match="two parts"):
        Sequences([("a", [1])], [("b", [2])], [("a", [3])])


@pytest.mark.parametrize("change", [{"stride": 0}, {"source_layers": 9}, {"most_layers": 0}])
def test_a_recipe_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ModelError):
        Recipe(**change)  # type: ignore[arg-type]
