"""How long a transfer takes, and how fast a change of the link is followed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.transfer import LegModel

MIB = 1 << 20
SIZES = [1, 4, 16, 64]
Transfer = tuple[int, float, float]
TRANSFERS = st.lists(
    st.tuples(st.integers(1, 1 << 30), st.floats(1e-4, 10.0), st.floats(1.0, 8.0)), max_size=6
)


def learned(transfers: list[Transfer]) -> LegModel:
    model = LegModel()
    for size, took, in_flight in transfers:
        model.observe(size, took, in_flight)
    return model


def feed(
    model: LegModel, n: int, rate: float, setup: float = 0.002, noise: float = 0.02, seed: int = 5
) -> None:
    random = Random(seed)
    for _ in range(n):
        size = random.choice(SIZES) * MIB
        model.observe(size, (setup + size / rate) * random.lognormvariate(0.0, noise))


def test_setup_and_rate_are_recovered() -> None:
    model = LegModel()
    feed(model, 60, 1e9, setup=0.004, noise=0.0)
    assert model.bytes_per_second == pytest.approx(1e9, rel=0.04)
    assert model.coefficients[0] == pytest.approx(0.004, rel=0.1)
    for size in SIZES:
        assert model.seconds(size * MIB) == pytest.approx(0.004 + size * MIB / 1e9, rel=0.03)


def test_a_link_is_shared_by_what_is_in_flight() -> None:
    model = LegModel()
    random = Random(1)
    for _ in range(60):
        size, sharing = random.choice(SIZES) * MIB, random.choice([1, 2, 4])
        model.observe(size, 0.001 + sharing * size / 1e9, sharing)
    assert model.bytes_per_second == pytest.approx(1e9, rel=0.02)
    assert model.seconds(16 * MIB, 4) == pytest.approx(0.001 + 4 * 16 * MIB / 1e9, rel=0.02)


@pytest.mark.parametrize("factor", [50.0, 1 / 50.0, 1.25, 1 / 1.25])
def test_a_link_that_changes_is_followed_within_a_few_transfers(factor: float) -> None:
    model = LegModel()
    feed(model, 60, 1e9)
    feed(model, 4, 1e9 * factor, seed=6)
    assert model.seconds(16 * MIB) == pytest.approx(0.002 + 16 * MIB / (1e9 * factor), rel=0.12)


def test_one_stalled_transfer_is_an_exception_and_not_a_change() -> None:
    model = LegModel()
    feed(model, 60, 1e9)
    model.observe(16 * MIB, 10 * 0.0188)
    feed(model, 10, 1e9, seed=6)
    assert model.seconds(16 * MIB) == pytest.approx(0.0188, rel=0.25)


def test_a_steady_link_is_trusted_and_a_fresh_one_is_not() -> None:
    fresh, steady = LegModel(), LegModel()
    feed(fresh, 1, 1e9, noise=0.0)
    feed(steady, 100, 1e9, noise=0.01)
    assert fresh.spread.quantile(0.95) > 1.2
    assert steady.spread.quantile(0.95) < 1.08


def test_a_jittery_link_shows_in_the_spread() -> None:
    model = LegModel()
    feed(model, 200, 1e9, noise=0.3)
    assert model.spread.quantile(0.95) > 1.25


def test_small_transfers_do_not_outvote_large_ones_on_the_rate() -> None:
    model = LegModel()
    for _ in range(30):
        model.observe(4096, 0.002)
        model.observe(64 * MIB, 0.001 + 64 * MIB / 1e9)
    assert model.seconds(64 * MIB) == pytest.approx(0.001 + 64 * MIB / 1e9, rel=0.05)


@given(TRANSFERS, st.integers(1, 1 << 32))
def test_no_prediction_is_negative_and_more_takes_no_less(transfers: list[Transfer], size: int) -> None:
    model = learned(transfers)
    assert 0.0 <= model.seconds(size) <= model.seconds(2 * size)
    assert model.seconds(size, 1) <= model.seconds(size, 3)


@given(TRANSFERS, TRANSFERS, TRANSFERS)
def test_merging_is_associative(a: list[Transfer], b: list[Transfer], c: list[Transfer]) -> None:
    x, y, z = learned(a), learned(b), learned(c)
    left, right = x.merged(y).merged(z), x.merged(y.merged(z))
    assert (left.n, left.bytes_seen) == (right.n, right.bytes_seen)
    assert left.coefficients == pytest.approx(right.coefficients, rel=1e-6, abs=1e-12)
    assert left.spread.n == right.spread.n
    assert left.spread.quantile(0.9) == pytest.approx(right.spread.quantile(0.9))


def test_impossible_transfers_are_left_out() -> None:
    model = learned([(0, 1.0, 1.0), (10, 0.0, 1.0)])
    assert not model.known
    assert model.seconds(MIB) == 0.0
    assert model.bytes_per_second == float("inf")
