"""Does sharing save time? The comparison with the holdout."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from kvferry.gate.trial import Saving, Trial


def run(trial: Trial, requests: int, *, effect: float, seed: int = 7, holdout: float = 0.5) -> Saving | None:
    """`effect` is the ratio of treated to held-out time; prompts are of all lengths, noise is 30 %."""
    random = Random(seed)
    for _ in range(requests):
        treated = random.random() >= holdout
        predicted = exp(random.gauss(0.0, 1.5))
        trial.observe(
            treated=treated,
            ready_seconds=predicted * exp(random.gauss(0.0, 0.3)) * (effect if treated else 1.0),
            recompute_seconds=predicted,
        )
    return trial.saving()


def test_nothing_is_said_before_both_arms_were_seen_often_enough() -> None:
    trial = Trial()
    for _ in range(1000):
        trial.observe(treated=True, ready_seconds=1.0, recompute_seconds=1.0)
    assert trial.saving() is None


@pytest.mark.parametrize("effect", [0.3, 0.9, 1.5])
def test_the_saving_is_found(effect: float) -> None:
    saving = run(Trial(), 4000, effect=effect)
    assert saving is not None
    assert saving.low < 1.0 - effect < saving.high
    assert saving.share == pytest.approx(1.0 - effect, abs=0.06)
    assert saving.costs == (effect > 1.0)


def test_without_an_effect_it_is_not_called_costly_however_often_one_looks() -> None:
    alarms = 0
    for seed in range(40):
        trial = Trial()
        random = Random(seed)
        for _ in range(60):
            saving = run(trial, 25, effect=1.0, seed=random.randrange(1 << 30))
            alarms += saving is not None and saving.costs
    assert alarms == 0


def test_the_past_fades() -> None:
    trial = Trial()
    run(trial, 50_000, effect=0.5)
    saving = run(trial, 8_000, effect=2.0, seed=8)
    assert saving is not None
    assert saving.costs


def test_impossible_times_are_left_out() -> None:
    trial = Trial()
    trial.observe(treated=True, ready_seconds=0.0, recompute_seconds=1.0)
    trial.observe(treated=True, ready_seconds=1.0, recompute_seconds=0.0)
    assert trial._treated.seen == 0


def test_a_saving_of_everything_has_no_trouble_with_its_logarithm() -> None:
    assert not Saving(1.0, 1.0, 1.0, 20, 20).costs
