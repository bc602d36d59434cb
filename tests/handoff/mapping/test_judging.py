"""Figures of likeness, against direct ones."""

from __future__ import annotations

import pytest
import torch

from kvferry.handoff.mapping.judging import Tally, attention_cosine
from kvferry.handoff.mapping.rope import Rope
from kvferry.handoff.mapping.shapes import LayerKv, LayerShape


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shape(window: int | None = None) -> LayerShape:
    rope = Rope(kind="none", width=4, rotated=0)
    return LayerShape(kv_heads=2, query_heads=4, key_width=4, value_width=4, rope=rope, window=window)


def test_a_tally_over_documents_is_r2_over_all_rows() -> None:
    native, mapped = random(2, 30, 4) + 100, random(2, 30, 4, seed=1) * 0.1
    mapped = native + mapped
    tally = Tally()
    for part in (slice(0, 7), slice(7, 30)):
        tally.add(native[:, part], mapped[:, part])
    total = (native - native.mean(1, keepdim=True)).double().square().sum((1, 2))
    expected = 1 - (native - mapped).double().square().sum((1, 2)) / total
    assert tally.by_head() == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_tally_of_nothing_has_no_heads() -> None:
    assert (Tally().by_head(), Tally().mean()) == ([], 0.0)


def test_equal_kv_has_cosine_one() -> None:
    layer = LayerKv(random(2, 6, 4), random(2, 6, 4, seed=1))
    assert attention_cosine(random(4, 6, 4, seed=2), shape(), 0.5, layer, layer) == pytest.approx(1.0)


def test_values_the_other_way_round_have_cosine_minus_one() -> None:
    layer = LayerKv(random(2, 6, 4), random(2, 6, 4, seed=1))
    other = LayerKv(layer.keys, -layer.values)
    assert attention_cosine(random(4, 6, 4, seed=2), shape(), 0.5, layer, other) == pytest.approx(-1.0)


def test_tokens_outside_the_window_do_not_count() -> None:
    layer = LayerKv(random(2, 6, 4), random(2, 6, 4, seed=1))
    values = layer.values.clone()
    values[:, 0] += 9.0
    queries = random(4, 6, 4, seed=2)
    seen = attention_cosine(queries, shape(), 0.5, layer, LayerKv(layer.keys, values))
    windowed = attention_cosine(queries, shape(window=1), 0.5, layer, LayerKv(layer.keys, values))
    # With a window of one token only the first token's own output sees the change.
    assert windowed > seen
