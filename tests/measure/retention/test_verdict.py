"""No, unless intervals say yes."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.measure.retention.verdict import judge
from kvferry.runs.retention_summary import Figure, Interval, Refused, Verdict


def between(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=8)


FIGURES: dict[str, Figure] = {
    "top1@32": between(0.93, 0.99),
    "floor_retention": between(0.92, 1.0),
    "beyond_top1": between(0.91, 0.99),
}
GAINS: dict[str, Figure] = {name: between(0.1, 0.3) for name in ("none", "random", "wrong")}


def judged(
    figures: dict[str, Figure] | None = None, gains: dict[str, Figure] | None = None, documents: int = 8
) -> Verdict:
    return judge({**FIGURES, **(figures or {})}, {**GAINS, **(gains or {})}, documents)


def test_what_clears_everything_may_be_used() -> None:
    found = judged()
    assert (found.answer, found.usable, found.failed, found.reasons) == ("use", True, False, ())


@pytest.mark.parametrize("name", ["top1@32", "floor_retention"])
def test_the_lower_end_counts_not_the_estimate(name: str) -> None:
    found = judged({name: between(0.89, 1.0)})
    assert (found.answer, found.failed) == ("do not use", False)


@pytest.mark.parametrize("name", ["top1@32", "floor_retention"])
def test_a_figure_that_is_refused_is_no_yes(name: str) -> None:
    found = judged({name: Refused(reason="no gap")})
    assert found.answer == "do not use"
    assert "no gap" in found.reasons[0]


@pytest.mark.parametrize("figure", [between(0.5, 0.8), Refused(reason="not measured")])
def test_what_holds_inside_only_is_for_inside(figure: Any) -> None:
    found = judged({"beyond_top1": figure})
    assert (found.answer, found.usable) == ("use inside the calibrated positions", True)


@pytest.mark.parametrize("name", ["none", "random", "wrong"])
def test_no_better_than_a_control_is_failed(name: str) -> None:
    found = judged(gains={name: between(-0.01, 0.5)})
    assert (found.answer, found.failed) == ("do not use", True)
    assert f"not surely better than {name}" in found.reasons[0]


def test_few_documents_lift_no_no() -> None:
    assert judged(documents=7).answer == "do not use"
