"""Moments are those of a batch, whatever the chunks, and their memory does not grow."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.handoff.mapping import statistics
from kvferry.handoff.mapping.statistics import Moments, blend, effective_lean


def rows(
    count: int, panels: int = 2, p: int = 5, q: int = 3, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(panels, count, p, generator=generator, dtype=torch.float64)
    return x, torch.randn(panels, count, q, generator=generator, dtype=torch.float64) + x[..., :q]


def direct(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = w.sum(1)[:, None, None]
    cx, cy = x - (w[..., None] * x).sum(1, True) / total, y - (w[..., None] * y).sum(1, True) / total
    wx = cx * w[..., None]
    return wx.transpose(1, 2) @ cx, wx.transpose(1, 2) @ cy, (cy * cy * w[..., None]).sum(1)


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 199), max_size=5), seed=st.integers(0, 20))
def test_a_stream_equals_a_batch(cuts: list[int], seed: int) -> None:
    x, y = rows(200, seed=seed)
    streamed = Moments(2, 5, 3)
    edges = [0, *sorted(set(cuts)), 200]
    for start, stop in pairwise(edges):
        streamed.add(x[:, start:stop], y[:, start:stop])
    for ours, theirs in zip(streamed.centred(), direct(x, y, torch.ones(2, 200)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_rows_are_summed_in_bounded_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(200)
    whole, chunked = Moments(2, 5, 3), Moments(2, 5, 3)
    whole.add(x, y)
    monkeypatch.setattr(statistics, "CHUNK_ROWS", 7)
    chunked.add(x, y)
    for ours, theirs in zip(chunked.centred(), whole.centred(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_memory_does_not_grow_with_rows() -> None:
    few, many = Moments(2, 5, 3), Moments(2, 5, 3)
    few.add(*rows(10))
    for seed in range(30):
        many.add(*rows(100, seed=seed))
    assert (many.nbytes, many.rows) == (few.nbytes, 3000)


def test_a_bias_a_million_times_the_spread_leaves_the_spread() -> None:
    x, y = rows(500)
    moments = Moments(2, 5, 3)
    moments.add(x + 1e6, y)
    theirs = direct(x, y, torch.ones(2, 500))
    torch.testing.assert_close(moments.centred()[0], theirs[0], atol=1e-4, rtol=1e-6)


def test_weights_count_a_row_as_often() -> None:
    x, y = rows(100)
    times = torch.randint(1, 4, (100,), generator=torch.Generator().manual_seed(1))
    weighted, repeated = Moments(2, 5, 3), Moments(2, 5, 3)
    weighted.add(x, y, times.double().expand(2, -1))
    repeated.add(x.repeat_interleave(times, 1), y.repeat_interleave(times, 1))
    for ours, theirs in zip(weighted.centred(), repeated.centred(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_merged_parts_are_the_whole() -> None:
    x, y = rows(100)
    whole, part = Moments(2, 5, 3), Moments(2, 5, 3)
    whole.add(x, y)
    part.add(x[:, :40], y[:, :40])
    rest = part.like()
    rest.add(x[:, 40:], y[:, 40:])
    part.merge(rest)
    for ours, theirs in zip(part.centred(), whole.centred(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_moments_about_different_origins_are_not_added() -> None:
    one, other = Moments(2, 5, 3), Moments(2, 5, 3)
    one.add(*rows(10, seed=1))
    other.add(*rows(10, seed=2))
    with pytest.raises(ValueError, match="origins"):
        one.merge(other)


def test_the_first_inputs_are_a_regression_of_their_own() -> None:
    x, y = rows(100)
    whole, fewer = Moments(2, 5, 3), Moments(2, 2, 3)
    whole.add(x, y)
    fewer.add(x[..., :2], y)
    for ours, theirs in zip(whole.first(2).centred(), fewer.centred(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shared", [True, False])
def test_any_lean_is_there_after_the_pass(alpha: float, shared: bool) -> None:
    x, y = rows(150, panels=1 if shared else 3)
    heads = y.reshape(150, 3, 1).transpose(0, 1) if shared else y
    r = torch.rand(3, 150, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain = Moments(x.shape[0], 5, 3)
    plain.add(x, y)
    leaning = plain.leaning(3)
    leaning.add(x, heads, r)
    blended = blend(plain, leaning, torch.full((3,), alpha, dtype=torch.float64))
    weights = 1 + alpha * (r / r.mean(1, keepdim=True) - 1)
    for ours, theirs in zip(blended.centred(), direct(x.expand(3, -1, -1), heads, weights), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("count", "inputs"), [(400, 20), (100, 20), (30, 20)])
def test_the_lean_leaves_enough_effective_rows(count: int, inputs: int) -> None:
    x, y = rows(count, panels=1, p=inputs)
    r = torch.rand(1, count, generator=torch.Generator().manual_seed(3)).double() ** 8
    plain = Moments(1, inputs, 3)
    plain.add(x, y)
    leaning = plain.leaning(1)
    leaning.add(x, y, r)
    alpha = float(effective_lean(leaning, inputs))
    weights = 1 + alpha * (r / r.mean() - 1)
    effective = float(weights.sum() ** 2 / weights.square().sum())
    enough = min(count, 2 * inputs)
    assert 0 <= alpha <= 1
    assert effective >= enough - 1e-6
    assert alpha == 1 or effective == pytest.approx(enough)


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="5 -> 3"):
        Moments(1, 5, 3).add(torch.zeros(1, 4, 6), torch.zeros(1, 4, 3))
