"""Lives follow observed reuse intervals, within their bounds."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.store.lifetime import Lifetimes, Reuses

intervals = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.001, 1e6)), max_size=60)


def observed(pairs: list[tuple[str, float]]) -> Lifetimes:
    lifetimes = Lifetimes()
    for data_class, seconds in pairs:
        lifetimes.observe(data_class, seconds)
    return lifetimes


def key(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def test_without_observations_the_bound_holds() -> None:
    lifetimes = observed([("chat", 10.0)] * 19)
    assert lifetimes.life_seconds("chat", 3600.0) == 3600.0
    assert lifetimes.life_seconds("chat", None) is None
    assert lifetimes.life_seconds("other", 60.0) == 60.0


def test_a_life_is_twice_what_nearly_all_reuses_need() -> None:
    lifetimes = observed([("chat", float(n)) for n in range(1, 101)])
    assert lifetimes.life_seconds("chat", None) == pytest.approx(190.0, rel=0.03)


def test_the_bound_is_never_exceeded() -> None:
    assert observed([("chat", 1000.0)] * 100).life_seconds("chat", 600.0) == 600.0


def test_classes_are_apart() -> None:
    lifetimes = observed([("fast", 1.0)] * 50 + [("slow", 1000.0)] * 50)
    assert lifetimes.life_seconds("fast", None) == pytest.approx(2.0, rel=0.03)
    assert lifetimes.life_seconds("slow", None) == pytest.approx(2000.0, rel=0.03)


def test_a_life_follows_when_intervals_change() -> None:
    lifetimes = observed([("chat", 1000.0)] * 4000 + [("chat", 10.0)] * 60_000)
    assert lifetimes.life_seconds("chat", None) == pytest.approx(20.0, rel=0.03)


@given(intervals, intervals, intervals)
def test_merging_is_associative_and_forgets_nothing(
    a: list[tuple[str, float]], b: list[tuple[str, float]], c: list[tuple[str, float]]
) -> None:
    one, two, three = observed(a), observed(b), observed(c)
    left, right = one.merged(two).merged(three), one.merged(two.merged(three))
    assert left.intervals() == right.intervals() == observed(a + b + c).intervals()


def test_it_can_be_saved() -> None:
    lifetimes = observed([("chat", float(n)) for n in range(1, 101)])
    again = Lifetimes(intervals=lifetimes.intervals())
    assert again.life_seconds("chat", None) == lifetimes.life_seconds("chat", None)


def test_reuses_are_told_by_their_longest_interval() -> None:
    lifetimes = Lifetimes()
    reuses = Reuses(lifetimes, one_in=1)
    for now in (0.0, 5.0, 8.0, 20.0):
        reuses.asked(now, "chat", [key(1)])
    assert lifetimes.intervals()["chat"].total == 2


def test_a_prompt_of_every_second_does_not_drown_the_others() -> None:
    lifetimes = Lifetimes()
    reuses = Reuses(lifetimes, one_in=1)
    dice = random.Random(0)
    for second in range(6000):
        reuses.asked(float(second) + dice.random() / 2, "chat", [key(0)])
        if second % 300 < 50:
            reuses.asked(float(second), "chat", [key(1 + second % 300)])
    life = lifetimes.life_seconds("chat", None)
    assert life == pytest.approx(600.0, rel=0.03)


def test_only_a_sample_of_bounded_size_is_remembered() -> None:
    reuses = Reuses(Lifetimes(), one_in=4, keys=100)
    reuses.asked(0.0, "chat", [key(n) for n in range(2000)])
    assert len(reuses._seen) == 100
    few = Reuses(Lifetimes(), one_in=4, keys=10_000)
    few.asked(0.0, "chat", [key(n) for n in range(2000)])
    assert 400 < len(few._seen) < 600


def test_a_dropped_block_that_is_asked_for_again_counts() -> None:
    """Nothing here depends on what was found: a life that was too short grows again."""
    lifetimes = Lifetimes()
    reuses = Reuses(lifetimes, one_in=1)
    for round_ in range(2):
        for n in range(30):
            reuses.asked(round_ * 500.0 + n, "chat", [key(n)])
    assert lifetimes.life_seconds("chat", None) == pytest.approx(1000.0, rel=0.03)
