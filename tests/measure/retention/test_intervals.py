"""Intervals cover what they should, pair what they must, and refuse what there is not."""

from __future__ import annotations

import numpy as np
import pytest

from kvferry.measure.retention.intervals import Interval, PairedBootstrap, Refused, wilson


def names(count: int) -> list[str]:
    return [f"d{at}" for at in range(count)]


@pytest.mark.parametrize("documents", [6, 8, 20])
def test_the_bootstrap_covers_a_known_mean(documents: int) -> None:
    """95 % intervals of a true mean of 1; a plain percentile interval of 6 covers it in 87 %."""
    generator, covered, rounds = np.random.default_rng(1), 0, 400
    for seed in range(rounds):
        found = PairedBootstrap(names(documents), seed=seed, draws=1000).mean(
            generator.normal(1, 1, documents)
        )
        assert isinstance(found, Interval)
        covered += found.low <= 1 <= found.high
    assert covered / rounds > 0.915


def test_documents_are_drawn_not_items() -> None:
    """Ten copies of each document's value say no more than one."""
    values = np.arange(8.0)
    once = PairedBootstrap(names(8)).mean(values)
    tenfold = PairedBootstrap([name for name in names(8) for _ in range(10)]).mean(np.repeat(values, 10))
    assert once == tenfold


def test_a_difference_is_paired() -> None:
    """Arms that move together differ surely, however much they move."""
    ours = np.random.default_rng(2).normal(0, 100, 10)
    found = PairedBootstrap(names(10)).difference(ours + 1, ours)
    assert isinstance(found, Interval)
    assert (found.low, found.high) == pytest.approx((1, 1))


def test_a_ratio_is_of_means_and_paired() -> None:
    under = np.linspace(1, 5, 9)
    found = PairedBootstrap(names(9)).ratio(0.8 * under, under, "the gap")
    assert isinstance(found, Interval)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))


@pytest.mark.parametrize("under", [[-1, 1, -2, 2, 0, 0.1], [-3, -2, -3, -2, -3, -2]])
def test_a_gap_that_may_not_be_there_is_refused(under: list[float]) -> None:
    found = PairedBootstrap(names(6)).ratio([1.0] * 6, under, "the gap")
    assert isinstance(found, Refused)
    assert "the gap is" in found.reason


def test_items_that_an_arm_has_not_are_left_out_on_both_sides() -> None:
    found = PairedBootstrap(names(7)).difference([1, 2, float("nan"), 4, 5, 6, 7], [0, 1, 100, 3, 4, 5, 6])
    assert isinstance(found, Interval)
    assert (found.value, found.n) == (1.0, 6)


@pytest.mark.parametrize("documents", [1, 2, 5])
def test_few_documents_have_no_interval(documents: int) -> None:
    found = PairedBootstrap([*names(documents), "d0"]).mean(np.arange(documents + 1.0))
    assert isinstance(found, Refused)
    assert "6 at least" in found.reason


def test_answers_that_are_all_alike_are_not_known_for_sure() -> None:
    """Wilson's upper end of none in 8 is 0.324."""
    found = PairedBootstrap(names(8), trials=True).ratio([1] * 8, [1] * 8, "the target's answers")
    assert isinstance(found, Interval)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.6756, 1.0), abs=1e-4)


def test_arms_that_answer_alike_may_differ() -> None:
    found = PairedBootstrap(names(8), trials=True).difference([1, 0] * 4, [1, 0] * 4)
    assert isinstance(found, Interval)
    assert (found.low, found.high) == pytest.approx((-0.3244, 0.3244), abs=1e-4)


def test_a_proportion_is_wilson_s_where_every_trial_has_its_document() -> None:
    assert PairedBootstrap(names(10)).proportion([1] * 8 + [0, 0]) == wilson(8, 10)


def test_ten_answers_of_each_document_say_no_more_than_one() -> None:
    documents = [name for name in names(8) for _ in range(10)]
    found = PairedBootstrap(documents, trials=True).proportion([1.0] * 40 + [0.0] * 40)
    sure = wilson(40, 80)
    assert isinstance(found, Interval)
    assert isinstance(sure, Interval)
    assert found.n == 8
    assert found.high - found.low > 2 * (sure.high - sure.low)


def test_a_proportion_stays_within_its_ends() -> None:
    found = PairedBootstrap([*names(8), "d0"], trials=True).proportion([1.0] * 9)
    assert isinstance(found, Interval)
    assert found.high == 1.0


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(3).normal(size=8)
    assert PairedBootstrap(names(8), seed=4).mean(values) == PairedBootstrap(names(8), seed=4).mean(values)
    assert PairedBootstrap(names(8), seed=4).mean(values) != PairedBootstrap(names(8), seed=5).mean(values)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_wilson_is_wilson_s(successes: int, trials: int, low: float, high: float) -> None:
    found = wilson(successes, trials)
    assert isinstance(found, Interval)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_no_trials_have_no_proportion() -> None:
    assert isinstance(wilson(0, 0), Refused)


def test_more_successes_than_trials_are_a_bug() -> None:
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson(5, 4)
