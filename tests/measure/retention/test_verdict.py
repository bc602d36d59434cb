"""No, unless intervals say yes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvferry.measure.retention.verdict import judge
from kvferry.runs.retention_summary import Figure, Interval, Longer, Refused, Verdict


def between(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=8)


FIGURES: dict[str, Figure] = {
    "top1@32": between(0.93, 0.99),
    "floor_retention": between(0.92, 1.0),
    "beyond_top1": between(0.91, 0.99),
}
GAINS: dict[str, Figure] = {name: between(0.1, 0.3) for name in ("none", "random", "wrong")}

LONGER = Longer(
    items=16,
    documents=16,
    continued_documents=8,
    calibrated=256,
    shortest=400,
    longest=512,
    nll_per_character={},
    kl={},
    top1={"mapped": between(0.91, 0.97)},
    gains=GAINS,
    floor_retention=between(0.92, 0.99),
    accuracy={},
    retention=Refused(reason="no choices"),
)


def judged(
    figures: dict[str, Figure] | None = None,
    gains: dict[str, Figure] | None = None,
    documents: int = 8,
    longer: dict[str, Any] | None = None,
) -> Verdict:
    far = msgspec.structs.replace(LONGER, **(longer or {}))
    return judge({**FIGURES, **(figures or {})}, {**GAINS, **(gains or {})}, documents, far)


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


def test_what_is_short_further_behind_is_for_inside() -> None:
    found = judged({"beyond_top1": between(0.5, 0.8)})
    assert (found.answer, found.usable) == ("use inside the calibrated positions", True)
    assert "agreement beyond the calibrated positions is 0.650" in found.reasons[0]


def test_where_further_behind_shows_nothing_longer_contexts_do() -> None:
    found = judged({"beyond_top1": Refused(reason="distances alone")})
    assert found.answer == "use"
    assert found.longer == "contexts of 400 to 512 tokens, longer than the 256 calibrated positions: use"


@pytest.mark.parametrize(
    ("longer", "said"),
    [
        ({"top1": {"mapped": between(0.8, 0.9)}}, "agreement with the target over 32 tokens is 0.850"),
        ({"top1": {}}, "no longer item has a continuation"),
        ({"floor_retention": between(0.5, 0.7)}, "what it keeps of a context's worth is 0.600"),
        ({"gains": {**GAINS, "none": between(-0.1, 0.1)}}, "not surely better than none"),
        ({"continued_documents": 7}, "7 documents with a continuation; 8 are the fewest"),
    ],
)
def test_what_is_short_on_longer_contexts_is_for_inside(longer: dict[str, Any], said: str) -> None:
    found = judged(longer=longer)
    assert (found.answer, found.usable, found.failed) == ("use inside the calibrated positions", True, False)
    assert found.longer.startswith(
        "contexts of 400 to 512 tokens, longer than the 256 calibrated positions: do not use; "
    )
    assert said in found.longer


def test_longer_contexts_that_were_not_measured_are_not_known() -> None:
    found = judge(FIGURES, GAINS, 8, Refused(reason="no item is longer"))
    assert found.answer == "use inside the calibrated positions"
    assert found.longer == "contexts longer than those calibrated: not judged, no item is longer"


def test_what_is_short_inside_is_not_lifted_by_longer_contexts() -> None:
    found = judged({"top1@32": between(0.5, 0.7)})
    assert found.answer == "do not use"
    assert found.longer.endswith(": use")


@pytest.mark.parametrize("name", ["none", "random", "wrong"])
def test_no_better_than_a_control_is_failed(name: str) -> None:
    found = judged(gains={name: between(-0.01, 0.5)})
    assert (found.answer, found.failed) == ("do not use", True)
    assert f"not surely better than {name}" in found.reasons[0]


def test_few_documents_lift_no_no() -> None:
    assert judged(documents=7).answer == "do not use"
