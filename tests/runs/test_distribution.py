"""A quantile is a value that was measured; of few values the largest stands for p95."""

from __future__ import annotations

import pytest

from kvferry.runs.distribution import quantile, worst


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.5, 3.0),
        ([4.0, 1.0], 0.5, 1.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_the_smallest_value_that_a_share_does_not_exceed(
    values: list[float], q: float, expected: float | None
) -> None:
    assert quantile(values, q) == expected


def test_the_largest_stands_for_p95_of_few() -> None:
    assert worst([float(number) for number in range(19)]) == (18.0, True)


def test_p95_of_enough_is_no_maximum() -> None:
    assert worst([float(number) for number in range(20)]) == (18.0, False)


def test_nothing_has_no_worst() -> None:
    assert worst([]) == (None, True)
