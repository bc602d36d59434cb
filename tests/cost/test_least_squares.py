"""Non-negative least squares from sums."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.least_squares import Sums

ROWS = st.lists(
    st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.1, 10.0)),
    max_size=8,
)


def of(rows: list[tuple[float, ...]], width: int = 3) -> Sums:
    sums = Sums(width)
    for *features, weight in rows:
        sums.add(features[:width], sum(features), weight)
    return sums


def same(a: Sums, b: Sums) -> bool:
    return (
        np.allclose(a.gram, b.gram, rtol=1e-12)
        and np.allclose(a.right, b.right, rtol=1e-12)
        and a.n == b.n
        and a.square == pytest.approx(b.square)
    )


@given(ROWS, ROWS, ROWS)
def test_merging_is_associative_and_commutative(a: list, b: list, c: list) -> None:  # type: ignore[type-arg]
    x, y, z = of(a), of(b), of(c)
    assert same(x.merged(y).merged(z), x.merged(y.merged(z)))
    assert same(x.merged(y), y.merged(x))
    assert same(x.merged(y), of(a + b))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_coefficients_are_recovered(width: int, seed: int) -> None:
    random = Random(seed)
    true = [random.uniform(0.1, 5.0) for _ in range(width)]
    sums = Sums(width)
    for _ in range(50):
        x = [random.uniform(0.0, 10.0) for _ in range(width)]
        sums.add(x, sum(a * b for a, b in zip(true, x, strict=True)), 1.0)
    assert sums.solve() == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_no_non_negative_point_is_better(width: int, seed: int) -> None:
    """Where the free optimum has a negative part: nothing near or far beats the answer."""
    random = Random(seed)
    rows = [([random.gauss(0.0, 1.0) for _ in range(width)], random.gauss(0.0, 1.0)) for _ in range(12)]
    sums = Sums(width)
    for x, y in rows:
        sums.add(x, y, 1.0)
    found = sums.solve()
    assert min(found) >= 0.0

    def loss(point: list[float]) -> float:
        return sum((sum(a * b for a, b in zip(point, x, strict=True)) - y) ** 2 for x, y in rows)

    best = loss(found)
    for _ in range(400):
        scale = random.choice([0.01, 0.1, 1.0])
        other = [max(0.0, a + random.gauss(0.0, scale)) for a in found]
        assert loss(other) >= best - 1e-9


def test_what_cannot_be_told_apart_is_decided_by_what_was_believed_before() -> None:
    sums = Sums(2)
    for _ in range(10):
        sums.add((1.0, 100.0), 5.0, 1.0)
    assert sums.solve(((1e-3, 0.0), (0.0, 0.0))) == pytest.approx([0.0, 0.05], abs=1e-6)
    assert sums.solve(((1e-3, 2.0), (0.0, 0.0))) == pytest.approx([2.0, 0.03], rel=1e-6)


def test_nothing_seen_is_nothing() -> None:
    assert Sums(3).solve() == [0.0, 0.0, 0.0]


def test_fading_weighs_the_past_less() -> None:
    sums = Sums(1)
    for _ in range(100):
        sums.add((1.0,), 10.0, 1.0)
    sums.fade(0.001)
    sums.add((1.0,), 1.0, 1.0)
    assert sums.solve()[0] == pytest.approx(1.8, abs=0.1)
