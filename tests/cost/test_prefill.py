"""How long a prefill takes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.prefill import PrefillModel

A, B, C = 0.004, 3e-4, 2e-8
Step = tuple[int, int, float]
STEPS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30_000), st.floats(0.001, 10.0)), max_size=6)


def seconds(tokens: int, context: int) -> float:
    return A + B * tokens + C * tokens * (context + tokens / 2)


def learned(steps: list[Step]) -> PrefillModel:
    model = PrefillModel()
    for tokens, context, took in steps:
        model.observe(tokens, context, took)
    return model


def noisy(n: int, noise: float, seed: int = 3) -> list[Step]:
    random = Random(seed)
    steps = []
    for _ in range(n):
        tokens, context = random.choice([64, 256, 1024, 2048]), random.choice([0, 1024, 8192, 30_000])
        steps.append((tokens, context, seconds(tokens, context) * random.lognormvariate(0.0, noise)))
    return steps


def test_the_coefficients_are_recovered() -> None:
    a, b, c = learned(noisy(100, 0.0)).coefficients
    assert a == pytest.approx(A, rel=0.02)
    assert (b, c) == (pytest.approx(B, rel=0.01), pytest.approx(C, rel=0.01))


def test_noise_leaves_predictions_right_and_shows_in_the_spread() -> None:
    model = learned(noisy(400, 0.1))
    assert model.seconds(4096, 8192, 2048) == pytest.approx(
        seconds(2048, 8192) + seconds(2048, 10_240), rel=0.08
    )
    assert model.spread.quantile(0.5) == pytest.approx(1.0, abs=0.08)
    assert 1.05 < model.spread.quantile(0.95) < 1.4


def test_only_short_prompts_do_not_make_long_ones_cheap() -> None:
    model = learned([(n, 0, seconds(n, 0)) for n in (32, 64, 128, 256) for _ in range(10)])
    true = sum(seconds(2048, k * 2048) for k in range(8))
    assert model.seconds(16_384, 0, 2048) > 0.5 * true


def test_chunks_share_everything_but_the_constant() -> None:
    model = learned(noisy(100, 0.0))
    whole, chunks = model.seconds(4096, 0, 4096), model.seconds(4096, 0, 1024)
    assert chunks - whole == pytest.approx(3 * model.coefficients[0])


def test_it_follows_an_engine_that_became_slower() -> None:
    model = learned(noisy(200, 0.02))
    for tokens, context, took in noisy(150, 0.02, seed=4):
        model.observe(tokens, context, 2.0 * took)
    assert model.seconds(1024, 1024, 2048) == pytest.approx(2.0 * seconds(1024, 1024), rel=0.1)


@given(STEPS, st.integers(1, 5000), st.integers(0, 50_000))
def test_no_prediction_is_negative(steps: list[Step], tokens: int, context: int) -> None:
    model = learned(steps)
    assert min(model.coefficients) >= 0.0
    assert model.seconds(tokens, context, 2048) >= 0.0


@given(STEPS, STEPS, STEPS)
def test_merging_is_associative(a: list[Step], b: list[Step], c: list[Step]) -> None:
    x, y, z = learned(a), learned(b), learned(c)
    left, right = x.merged(y).merged(z), x.merged(y.merged(z))
    assert left.n == right.n == len(a) + len(b) + len(c)
    assert left.tokens_seen == right.tokens_seen
    assert left.coefficients == pytest.approx(right.coefficients, rel=1e-6, abs=1e-12)
    assert left.spread.quantile(0.95) == pytest.approx(right.spread.quantile(0.95))


def test_impossible_steps_are_left_out() -> None:
    model = learned([(0, 0, 1.0), (10, 0, 0.0), (-1, 0, 1.0)])
    assert not model.known
    assert model.seconds(100, 0, 2048) == 0.0
