"""What --require understands, and which end of an interval it looks at."""

from __future__ import annotations

import pytest

from kvferry.errors import UsageError
from kvferry.measure.retention.requirements import check_required, parse_required
from kvferry.runs.retention_summary import Figure, Interval, Refused

SURE = Interval(value=0.9, low=0.8, high=0.95, n=8)


def met(text: str, figure: Figure) -> bool:
    (required,) = parse_required([text])
    (found,) = check_required([required], {required.name: figure})
    return found.met


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("top1>=0.8", True),
        ("top1 >= 0.81", False),
        ("kl<=0.95", True),
        ("kl<=0.94", False),
        ("slope_nll<=1e0", True),
    ],
)
def test_the_worse_end_must_reach_the_bound(text: str, is_met: bool) -> None:
    assert met(text, SURE) is is_met


def test_a_refused_figure_is_not_met() -> None:
    assert not met("gap_recovered>=0", Refused(reason="no gap"))


@pytest.mark.parametrize("text", ["top1", "top1>0.9", "top1>=", "top1>=x", "top1==1", ">=1", "top1>=1.2.3"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="NAME>=NUMBER"):
        parse_required([text])


def test_an_unknown_name_is_answered_with_the_known() -> None:
    with pytest.raises(UsageError, match=r"no figure 'top2'.*floor_retention.*<=: kl"):
        parse_required(["top2>=0.9"])


@pytest.mark.parametrize(("text", "right"), [("kl>=1", "kl<=1"), ("top1<=0.5", "top1>=0.5")])
def test_the_wrong_direction_is_refused(text: str, right: str) -> None:
    with pytest.raises(UsageError, match=right):
        parse_required([text])
