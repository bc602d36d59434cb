"""The reader of queries sees what is there."""

from __future__ import annotations

import pytest

from .promql import names_in


@pytest.mark.parametrize(
    ("query", "metrics", "grouped", "labels"),
    [
        ("a", {"a"}, set(), set()),
        ("sum by (x, y) (rate(a_total[5m]))", {"a_total"}, {"x", "y"}, set()),
        ("sum(rate(a[5m])) by (x)", {"a"}, {"x"}, set()),
        ('a{l="sum by (b)", m!~"x|y",} > 0.1 * b', {"a", "b"}, set(), {"l", "m"}),
        ("a / on (x) group_left b", {"a", "b"}, {"x"}, set()),
        (
            "histogram_quantile(0.95, sum by (le) (rate(a_bucket[$__rate_interval])))",
            {"a_bucket"},
            {"le"},
            set(),
        ),
        ("a or b unless on (x) c == 0 # d", {"a", "b", "c"}, {"x"}, set()),
        ('label_values(a{l=~"$l"}, a)', {"a"}, set(), {"l"}),
        ("1e9 < max(a) - 2.5", {"a"}, set(), set()),
    ],
)
def test_names(query: str, metrics: set[str], grouped: set[str], labels: set[str]) -> None:
    names = names_in(query)
    assert (names.metrics, names.grouped, {label for _, label, _, _ in names.matched}) == (
        metrics,
        grouped,
        labels,
    )


def test_a_matcher_belongs_to_its_metric() -> None:
    assert names_in('a{l="1"} + b{m!="2"}').matched == [("a", "l", "=", "1"), ("b", "m", "!=", "2")]


@pytest.mark.parametrize(
    "query",
    ["sum(a", "a)", "rat(a[5m])", "rate(a[5x])", 'a{l="1"', "a{l=1}", '{l="1"}', "a ? b", "sum by (x=) (a)"],
)
def test_what_cannot_be_read_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        names_in(query)
