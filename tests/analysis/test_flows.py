from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, touched, trace_of

from kvferry.analysis.flows import STEP_SECONDS, FlowCount
from kvferry.analysis.result import FlowPicture
from kvferry.traces import Request, from_requests


def flows_of(asked: list[tuple[float, str]]) -> FlowCount:
    count = FlowCount()
    for part in touched(
        from_requests(
            [
                Request(
                    arrival_seconds=time,
                    input_tokens=len(p) * BLOCK,
                    blocks=[p[: n + 1] for n in range(len(p))],
                )
                for time, p in asked
            ],
            BLOCK,
        )
    ):
        count.add(part)
    return count


@given(
    asked=st.lists(
        st.tuples(st.floats(0, 3000), st.text("ab", min_size=1, max_size=4)), min_size=1, max_size=30
    ),
    minutes=st.integers(1, 60),
)
def test_the_worst_window_is_the_worst_of_all(asked: list[tuple[float, str]], minutes: int) -> None:
    asked.sort(key=lambda one: one[0])
    start = asked[0][0]
    read = [0.0] * 60
    write = [0.0] * 60
    seen: set[str] = set()
    for time, path in asked:
        names = [path[: n + 1] for n in range(len(path))]
        matched = next((n for n, name in enumerate(names) if name not in seen), len(names))
        seen.update(names)
        step = int((time - start) // STEP_SECONDS)
        read[step] += matched * BLOCK
        write[step] += (len(path) - matched) * BLOCK
    worst = flows_of(asked).worst(minutes * 60.0, 2.0)
    best = [max(sum(row[at : at + minutes]) for at in range(60)) for row in (read, write)]
    # A window longer than the trace would only dilute it.
    span = max(1.0, asked[-1][0] - start)
    if minutes * 60.0 >= span:
        best = [sum(row) for row in (read, write)]
    assert worst.seconds == min(minutes * 60.0, span)
    bits = 16.0 / worst.seconds
    assert worst.read_bits_per_second == pytest.approx(best[0] * bits)
    assert worst.write_bits_per_second == pytest.approx(best[1] * bits)


@pytest.mark.parametrize("last", [61.0, 120.0, 367.44])
def test_a_trace_within_the_window_is_divided_by_its_own_time(last: float) -> None:
    worst = flows_of([(0.0, "aaaa"), (30.0, "bb"), (last, "aaaa")]).worst(900.0, 1.0)
    assert worst.seconds == last
    assert worst.read_bits_per_second == pytest.approx(8 * 16 / last)
    assert worst.write_bits_per_second == pytest.approx(8 * 24 / last)


def series_of(*times: float) -> list[tuple[float, float]]:
    """(start, bits a second read and written) of points; every request has four bytes."""
    asked = [(time, chr(ord("a") + number)) for number, time in enumerate(times)]
    found = flows_of(asked).flows(
        window_seconds=60.0, bytes_per_token=1.0, replicas=1, storage_nodes=2, unique_tokens=4, hot_tokens=0,
        warm_seconds=1.0,
    )  # fmt: skip
    return [(one.start_seconds, one.read_bits_per_second + one.write_bits_per_second) for one in found.series]


def test_the_last_step_ends_with_the_trace() -> None:
    assert series_of(0.0, 60.0, 100.0) == [(0.0, pytest.approx(32 / 60)), (60.0, pytest.approx(64 / 40))]


def test_a_last_step_of_a_moment_is_no_rate_of_its_own() -> None:
    assert series_of(0.0, 60.0, 120.0, 121.0) == [
        (0.0, pytest.approx(32 / 60)),
        (60.0, pytest.approx(96 / 61)),
    ]


def pictures(nodes: int) -> dict[str, FlowPicture]:
    found = flows_of([(0.0, "aaaa"), (30.0, "aaaa"), (100.0, "bb")]).flows(
        window_seconds=60.0,
        bytes_per_token=7.5,
        replicas=3,
        storage_nodes=nodes,
        unique_tokens=24,
        hot_tokens=16,
        warm_seconds=60.0,
    )
    assert [point.start_seconds for point in found.series] == [0.0, 60.0]
    return {one.name: one for one in found.pictures}


def test_four_pictures() -> None:
    found = pictures(4)
    # 7.5 bytes a token over 60 seconds is one bit a second.
    rates = {
        name: (one.read_bits_per_second, one.write_bits_per_second, one.replica_bits_per_second)
        for name, one in found.items()
    }
    assert rates == {
        "steady": (16.0, 16.0, 0.0),
        "new-replicas": (16.0, 16.0, 48.0),
        "miss-burst": (0.0, 32.0, 0.0),
        "node-lost": (16.0, 16.0, 6.0),
    }
    assert found["steady"].per_node_bits_per_second == 8.0
    assert found["node-lost"].per_node_bits_per_second == pytest.approx(38 / 3)


def test_the_only_node_lost_carries_nothing() -> None:
    lost = pictures(1)["node-lost"]
    assert (lost.read_bits_per_second, lost.per_node_bits_per_second) == (0.0, 0.0)


def test_a_long_trace_has_a_bounded_series() -> None:
    found = flows_of([(0.0, "a"), (3e6, "a")]).flows(
        window_seconds=60.0, bytes_per_token=1.0, replicas=1, storage_nodes=2, unique_tokens=4, hot_tokens=0,
        warm_seconds=1.0,
    )  # fmt: skip
    assert len(found.series) <= 2000
    lengths = [after.start_seconds - one.start_seconds for one, after in pairwise(found.series)]
    lengths.append(3e6 - found.series[-1].start_seconds)
    rates = [one.read_bits_per_second + one.write_bits_per_second for one in found.series]
    total = sum(rate * seconds for rate, seconds in zip(rates, lengths, strict=True))
    assert total == pytest.approx(8 * 8)


def test_nothing_flows_in_an_empty_trace() -> None:
    count = FlowCount()
    for part in touched(trace_of([])):
        count.add(part)
    assert count.worst(60.0, 1.0).read_bits_per_second == 0.0
