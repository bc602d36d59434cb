"""Which arm a request is in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.gate.arms import arm_of, uniform
from kvferry.gate.facts import Arm

IDS = [f"request-{i}" for i in range(20_000)]
SHARES = st.floats(0.0, 0.5)


def test_a_number_depends_on_id_and_purpose_alone() -> None:
    assert uniform("a", "arm") == uniform("a", "arm")
    assert uniform("a", "arm") != uniform("a", "explore")
    assert uniform("a", "arm") != uniform("b", "arm")


def test_numbers_are_uniform() -> None:
    numbers = [uniform(rid, "arm") for rid in IDS]
    assert all(0.0 <= u < 1.0 for u in numbers)
    for tenth in range(10):
        share = sum(tenth / 10 <= u < (tenth + 1) / 10 for u in numbers) / len(numbers)
        assert share == pytest.approx(0.1, abs=0.01)


def test_what_is_explored_does_not_depend_on_the_arm() -> None:
    explored = [rid for rid in IDS if uniform(rid, "explore") < 0.1]
    upper = sum(uniform(rid, "arm") >= 0.5 for rid in explored) / len(explored)
    assert upper == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("mode", "arm"), [("off", Arm.OFF), ("shadow", Arm.SHADOW)])
@given(u=st.floats(0.0, 1.0, exclude_max=True))
def test_off_and_shadow_hold_for_everybody(mode: str, arm: Arm, u: float) -> None:
    assert arm_of(mode, u, canary_share=0.3, holdout_share=0.3) is arm


@pytest.mark.parametrize("mode", ["on", "canary"])
def test_shares_are_what_they_say(mode: str) -> None:
    arms = [arm_of(mode, uniform(rid, "arm"), canary_share=0.2, holdout_share=0.05) for rid in IDS]
    assert arms.count(Arm.HOLDOUT) / len(arms) == pytest.approx(0.05, abs=0.01)
    expected = 0.95 if mode == "on" else 0.2
    assert arms.count(Arm.ON) / len(arms) == pytest.approx(expected, abs=0.01)


@given(st.floats(0.0, 1.0, exclude_max=True), SHARES, SHARES, SHARES)
def test_a_growing_canary_moves_nobody_out_of_the_holdout_or_out_of_itself(
    u: float, holdout: float, a: float, b: float
) -> None:
    small, large = sorted((a, b))
    before = arm_of("canary", u, canary_share=small, holdout_share=holdout)
    after = arm_of("canary", u, canary_share=large, holdout_share=holdout)
    on = arm_of("on", u, canary_share=large, holdout_share=holdout)
    if before is Arm.HOLDOUT:
        assert after is on is Arm.HOLDOUT
    if before is Arm.ON:
        assert after is on is Arm.ON
