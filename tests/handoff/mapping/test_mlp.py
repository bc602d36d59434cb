"""The network is kept where it helps on held-out rows, and only there."""

from __future__ import annotations

import pytest
import torch

from kvferry.handoff.mapping.mlp import Mlp, MlpSettings, improve
from kvferry.handoff.mapping.ridge import Line, ridge
from kvferry.handoff.mapping.statistics import Moments


def fitted(bent: bool, seed: int = 1) -> tuple[Line, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1500, 6, generator=generator)
    y = x[..., :3] + (x[..., 3:].square() if bent else 0.0)
    y = y + 0.1 * torch.randn(y.shape, generator=generator)
    moments = Moments(1, 6, 3)
    moments.add(x[:, :1000], y[:, :1000])
    line = ridge(moments, 1e-6)
    return line, x[:, :1000], y[:, :1000], x[:, 1000:], y[:, 1000:]


@pytest.fixture(scope="module")
def bent() -> tuple[Mlp | None, float, float]:
    return improve(*fitted(bent=True))


def test_a_bend_is_learned_and_kept(bent: tuple[Mlp | None, float, float]) -> None:
    mlp, before, after = bent
    assert mlp is not None
    assert after > before + 0.3


def test_figures_are_of_the_line_and_of_both(bent: tuple[Mlp | None, float, float]) -> None:
    line, _, _, x, y = fitted(bent=True)
    mlp, before, after = bent
    line = Line(line.weight.float(), line.bias.float())
    total = (y - y.mean(1, keepdim=True)).square().sum()
    assert mlp is not None
    assert before == pytest.approx(1 - float((y - line(x)).square().sum() / total), abs=1e-5)
    assert after == pytest.approx(1 - float((y - line(x) - mlp(x)).square().sum() / total), abs=1e-5)


def test_where_a_line_is_enough_there_is_no_network() -> None:
    assert improve(*fitted(bent=False))[0] is None


def test_equal_seeds_give_equal_networks() -> None:
    short = MlpSettings(steps=20, margin=-9.0)
    first, second = (improve(*fitted(bent=True), short)[0] for _ in range(2))
    assert first is not None
    assert second is not None
    assert all(
        torch.equal(a, b) for a, b in zip(first.tensors().values(), second.tensors().values(), strict=True)
    )
