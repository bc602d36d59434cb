"""Source layers and heads are found where a test has put them."""

from __future__ import annotations

import pytest
import torch

from kvferry.errors import ModelError
from kvferry.handoff.mapping.layers import Scores, Side, score_layers, wire

from .planted import Planted, Source, model_kv

FROM_LAYER, FROM_HEAD = (2, 0), (1, 0, 2)


@pytest.fixture(scope="module")
def scores() -> Scores:
    source = Source(model_kv("s", 4, 3, 8))
    target = Planted(model_kv("t", 2, 3, 6), source, FROM_LAYER, FROM_HEAD, noise=0.1)
    ids = torch.randint(0, 997, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = torch.arange(300)
    return score_layers(Side(*source.plain(ids)), Side(*target.plain(ids)), rows[:200], rows[200:])


def test_the_layer_that_a_target_layer_is_made_of_ranks_first(scores: Scores) -> None:
    assert [scores.ranked(target)[0] for target in (0, 1)] == list(FROM_LAYER)


def test_its_score_is_near_one_and_others_explain_nothing(scores: Scores) -> None:
    assert scores.layer(2, 0) > 0.95
    assert scores.layer(1, 0) < 0.1


def test_permuted_heads_are_matched(scores: Scores) -> None:
    assert scores.matched(2, 0) == FROM_HEAD


def test_wiring_takes_the_best_layers_and_their_matched_heads(scores: Scores) -> None:
    first = wire(scores, 2, "local")[0]
    assert (first.sources[0], len(first.sources), first.matched[0]) == (2, 2, FROM_HEAD)


def test_full_inputs_match_no_heads(scores: Scores) -> None:
    assert wire(scores, 2, "full")[0].matched == ()


def test_of_equal_layers_the_nearest_in_depth_ranks_first() -> None:
    same = [[torch.ones(1, 1)] * 3 for _ in range(3)]
    assert [Scores(same).ranked(target)[0] for target in range(3)] == [0, 1, 2]


def test_too_few_rows_are_refused() -> None:
    side = Side([torch.zeros(1, 6, 8)], [torch.zeros(1, 6, 8)])
    with pytest.raises(ModelError, match="more text"):
        score_layers(side, side, torch.arange(3), torch.arange(3, 6))
