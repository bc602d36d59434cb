"""Lines from moments alone are those of rows."""

from __future__ import annotations

import pytest
import torch

from kvferry.errors import ModelError
from kvferry.handoff.mapping.ridge import Line, best_line, explained, residual_squares, ridge
from kvferry.handoff.mapping.statistics import Moments


def planted(count: int, noise: float = 0.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Line]:
    fixed, generator = torch.Generator().manual_seed(9), torch.Generator().manual_seed(seed)
    line = Line(
        torch.randn(2, 6, 4, generator=fixed, dtype=torch.float64),
        torch.randn(2, 4, generator=fixed, dtype=torch.float64),
    )
    x = torch.randn(2, count, 6, generator=generator, dtype=torch.float64) + 3
    y = line(x)
    return x, y + noise * torch.randn(y.shape, generator=generator, dtype=torch.float64), line


def moments(x: torch.Tensor, y: torch.Tensor) -> Moments:
    made = Moments(x.shape[0], x.shape[2], y.shape[2])
    made.add(x, y)
    return made


def test_a_planted_line_is_found() -> None:
    x, y, line = planted(50)
    found = ridge(moments(x, y), 0.0)
    torch.testing.assert_close(found.weight, line.weight, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found.bias, line.bias, atol=1e-9, rtol=1e-9)


def test_residuals_from_moments_are_those_of_rows() -> None:
    x, y, line = planted(50, noise=0.5)
    other = Line(line.weight * 1.1, line.bias + 0.2)
    theirs = (y - other(x)).square().sum(1)
    torch.testing.assert_close(residual_squares(other, moments(x, y)), theirs)


def test_what_is_explained_is_one_less_the_share_left() -> None:
    x, y, line = planted(400, noise=0.5)
    left = (y - line(x)).square().sum((1, 2)) / (y - y.mean(1, keepdim=True)).square().sum((1, 2))
    torch.testing.assert_close(explained(line, moments(x, y), 2), 1 - left)


def test_a_head_that_never_varies_is_explained_by_nothing() -> None:
    x, y, line = planted(30)
    y[1] = 4.0
    assert float(explained(line, moments(x, y), 2)[1]) == 0.0


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_lambda_means_the_same_at_any_scale(size: float) -> None:
    x, y, _ = planted(60, noise=0.3)
    plain, scaled = ridge(moments(x, y), 0.1), ridge(moments(x * size, y), 0.1)
    torch.testing.assert_close(scaled.weight * size, plain.weight)


def test_lambda_means_the_same_for_any_number_of_rows() -> None:
    x, y, _ = planted(60, noise=0.3)
    once, thrice = ridge(moments(x, y), 0.1), ridge(moments(x.repeat(1, 3, 1), y.repeat(1, 3, 1)), 0.1)
    torch.testing.assert_close(thrice.weight, once.weight)


def test_the_lambda_that_does_best_on_held_out_rows_is_taken() -> None:
    few, many = planted(8, noise=3.0, seed=1), planted(500, noise=3.0, seed=2)
    grid = (1e-6, 1e-2, 1.0, 10.0)
    _, chosen, score = best_line(moments(*few[:2]), moments(*many[:2]), 2, grid)
    scores = {
        value: float(explained(ridge(moments(*few[:2]), value), moments(*many[:2]), 2).mean())
        for value in grid
    }
    assert (chosen, score) == (max(scores, key=lambda one: scores[one]), max(scores.values()))


def test_fewer_rows_than_inputs_and_no_lambda_are_refused() -> None:
    x, y, _ = planted(3)
    with pytest.raises(ModelError, match="larger lambda"):
        ridge(moments(x, y), 0.0)


def test_panels_with_the_same_inputs_join_into_one() -> None:
    x, _, line = planted(5)
    same = x[:1].expand(2, -1, -1)
    joined = line.joined()(same[:1])
    torch.testing.assert_close(joined[0].reshape(5, 2, 4).transpose(0, 1), line(same))
