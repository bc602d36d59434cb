"""Two logs, before and after a change of prompts."""

from __future__ import annotations

from planting import Row, clean, lines_of

from kvferry.analysis.lint import prompts_of
from kvferry.analysis.lint.baseline import BaselineResult, compare
from kvferry.traces.chunk import Problems


def compared(old: list[Row], new: list[Row], fail_over: float | None = 500) -> BaselineResult:
    def read(rows: list[Row]) -> list:  # type: ignore[type-arg]
        return list(prompts_of(lines_of(rows), Problems(), path="log"))

    return compare(read(old), read(new), old_path="old.jsonl", fail_over=fail_over)[0]


def dated(rows: list[Row], service: str, day: int | None = None) -> list[Row]:
    for number, row in enumerate(rows):
        if row["service"] == service:
            text = f"Today is 2026-11-{day or number % 28 + 1:02d}.\n"
            row["messages"][0]["content"] = text + row["messages"][0]["content"]
    return rows


def test_the_same_log_loses_nothing() -> None:
    result = compared(clean(), clean())
    assert (result.failed, result.lost_per_request) == (False, 0)


def test_a_date_in_one_service_fails_and_is_named() -> None:
    result = compared(clean(), dated(clean(), "service-b"))
    assert result.failed
    assert result.sentence.startswith("service-b loses 1,")
    assert "a date or a time" in result.sentence
    assert "messages[0] (system)" in result.sentence


def test_the_other_services_lose_nothing() -> None:
    result = compared(clean(), dated(clean(), "service-b"))
    assert {one.name: one.lost_per_request for one in result.services if one.name != "service-b"} == {
        "service-a": 0,
        "service-c": 0,
    }


def test_below_the_limit_it_passes() -> None:
    assert not compared(clean(), dated(clean(), "service-b"), fail_over=5000).failed


def test_without_a_limit_nothing_fails() -> None:
    assert not compared(clean(), dated(clean(), "service-b"), fail_over=None).failed


def test_a_date_that_is_the_same_in_the_whole_log_is_at_risk() -> None:
    result = compared(clean(), dated(clean(), "service-b", day=29))
    assert result.failed
    assert "at every change" in result.sentence


def test_a_date_that_the_old_prompts_had_too_is_no_change() -> None:
    old, new = dated(clean(), "service-b", day=28), dated(clean(), "service-b", day=29)
    assert not compared(old, new).failed


def test_taking_a_date_out_is_a_gain() -> None:
    result = compared(dated(clean(), "service-b"), clean())
    assert not result.failed
    assert min(one.lost_per_request for one in result.services) < -1000


def test_one_request_on_either_side_is_compared_with_the_old_one() -> None:
    new = clean(1, 1)
    new[0]["messages"][0]["content"] = "Answer in verse. " + new[0]["messages"][0]["content"]
    result = compared(clean(1, 1), new)
    assert result.failed


def test_reworded_heads_cost_once() -> None:
    new = clean()
    for row in new:
        row["messages"][0]["content"] = "Answer in verse. " + row["messages"][0]["content"]
    result = compared(clean(), new)
    assert not result.failed
    assert all(one.once_per_request > 1000 for one in result.services)


def test_services_of_one_log_only_are_said() -> None:
    result = compared(clean(2), clean(4))
    assert result.unmatched == ["service-c (only in the new log)", "service-d (only in the new log)"]


def test_without_services_families_are_compared() -> None:
    old, new = clean(), dated(clean(), "service-b")
    for row in [*old, *new]:
        del row["service"]
    result = compared(old, new)
    assert result.failed
    assert len(result.services) == 3
