from __future__ import annotations

import pytest

from kvferry.report.page.numbers import compact, gigabits, percent, points, seconds, size, span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.3736), "37.4%"),
        (percent(0.00042), "0.042%"),
        (percent(0.0), "0.0%"),
        (percent(None), "–"),
        (percent(float("nan")), "–"),
        (points(0.044), "+4.4 points"),
        (points(-0.044), "-4.4 points"),
        (compact(144_793_823), "145 M"),
        (compact(30_000_000), "30.0 M"),
        (compact(999), "999"),
        (gigabits(46.02e9), "46.0 Gbit/s"),
        (gigabits(2.2e6), "0.0022 Gbit/s"),
        (gigabits(1.4368e12), "1,437 Gbit/s"),
        (gigabits(0.0), "0.0 Gbit/s"),
        (seconds(0.3812), "381 ms"),
        (seconds(0.0022), "2.2 ms"),
        (seconds(6.6917), "6.69 s"),
        (seconds(131.7), "132 s"),
        (seconds(0.0), "0 s"),
        (size(40 * 2**30), "40 GiB"),
        (size(1.953 * 2**40), "1.95 TiB"),
        (size(500 * 2**30), "500 GiB"),
        (span(3537.0), "59 min"),
        (span(900.0), "15 min"),
        (span(128.0), "2.1 min"),
        (span(64.0), "64 s"),
        (span(0.0), "0 s"),
        (span(86400.0 * 30), "30 d"),
        (span(float("inf")), "inf d"),
    ],
)
def test_a_number_reads(text: str, expected: str) -> None:
    assert text == expected
