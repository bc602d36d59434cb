from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reading import read

from kvferry.traces import open_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_lengths_and_times(lines: Callable[..., Path]) -> None:
    rows = [HEAD, "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:05,3180,8"]
    trace = open_trace(lines(rows))
    first, second = read(trace)
    assert (first.input_tokens, first.output_tokens) == (4808, 10)
    assert second.arrival == pytest.approx(1.02004, abs=1e-6)
    assert not trace.has_blocks
    assert "cannot be computed" in trace.caveats[0]


def test_times_with_a_zone(lines: Callable[..., Path]) -> None:
    rows = [HEAD, "2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01+00:00,1,5"]
    assert read(open_trace(lines(rows)))[1].arrival == pytest.approx(0.99007, abs=1e-6)


def test_bad_rows(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([HEAD, "yesterday,1,2", "2023-11-16 18:17:05,3180", "2023-11-16 18:17:05,x,8"]))
    assert read(trace) == []
    assert [one.line for one in trace.problems.first] == [2, 3, 4]


def test_the_published_trace(public: Path) -> None:
    trace = open_trace(public / "azure_2023_code.csv", strict=True)
    assert len(read(trace)) == 8_819
