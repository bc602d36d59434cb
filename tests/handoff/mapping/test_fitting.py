"""What a fit keeps does not grow, and it chooses only on rows that it was given for that."""

from __future__ import annotations

import pytest

from kvferry.errors import ModelError
from kvferry.handoff.mapping.fitting import Fitting
from kvferry.handoff.mapping.rows import Recipe, rows_of

from .planted import Planted, Source, model_kv, text_of

SOURCE, TARGET = model_kv("s", 4, 3, 8), model_kv("t", 3, 2, 6, theta=7e4)
RECIPE = Recipe(weighted=True, warm_rows=256, most_layers=2)


def pair() -> tuple[Source, Planted]:
    source = Source(SOURCE)
    return source, Planted(TARGET, source, (3, 0, 2), (2, 0))


def test_the_sums_take_the_same_memory_after_any_number_of_documents() -> None:
    source, target = pair()
    fitting = Fitting(SOURCE, TARGET, RECIPE)
    sizes = []
    for document, ids in text_of(20).train:
        rows = rows_of(
            document,
            source.prefill(ids),
            target.prefill(ids, queries=True),
            SOURCE,
            TARGET,
            RECIPE,
        )
        fitting.train(rows)
        sizes.append(fitting.nbytes)
    assert len(set(sizes[8:])) == 1


def test_a_fit_before_validation_is_refused() -> None:
    source, target = pair()
    fitting = Fitting(SOURCE, TARGET, RECIPE)
    for document, ids in text_of(4).train:
        fitting.train(
            rows_of(document, source.prefill(ids), target.prefill(ids, queries=True), SOURCE, TARGET, RECIPE)
        )
    with pytest.raises(ModelError, match="validation"):
        fitting.fit()


def test_one_choice_can_be_asked_for_in_place_of_the_recipes() -> None:
    source, target = pair()
    fitting = Fitting(SOURCE, TARGET, RECIPE)
    text = text_of()
    for part, take in ((text.train, fitting.train), (text.validation, fitting.validate)):
        for document, ids in part:
            take(
                rows_of(
                    document, source.prefill(ids), target.prefill(ids, queries=True), SOURCE, TARGET, RECIPE
                )
            )
    facts = fitting.fit(source_layers=2, lambdas=(0.1,)).facts
    assert facts is not None
    assert (facts.source_layers, set(facts.lambdas)) == (2, {(0.1, 0.1)})
    again = fitting.fit().facts
    assert again is not None
    assert again.lambdas[0][0] < 0.1
