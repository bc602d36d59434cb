from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.errors import FormatError, UsageError
from kvferry.report.page import run_page
from kvferry.report.page.content import Page, Section

from .runs import a_demo, a_killed_run, a_summary

EXAMPLE = Path(__file__).parents[3] / "docs" / "example-run"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return run_page(a_demo(tmp_path_factory.mktemp("runs") / "demo"))


def section(page: Page, name: str) -> Section:
    (found,) = [section for section in page.sections if section.name == name]
    return found


def test_the_sentences_of_a_demo_come_first(page: Page) -> None:
    assert page.verdict == a_summary().sentences


def test_the_order_of_questions(page: Page) -> None:
    assert [section.name for section in page.sections] == [
        "times",
        "ledger",
        "predictions",
        "turn",
        "policies",
        "checks",
    ]


def test_distributions_repeat_the_summary(page: Page) -> None:
    table = section(page, "times").table
    assert table is not None
    assert table.rows == (
        ("local hit", "3", "300 ms", "320 ms (max)"),
        ("pool hit", "3", "400 ms", "420 ms (max)"),
        ("declined", "1", "5.50 s", "5.50 s (max)"),
        ("fallback", "1", "6.10 s", "6.10 s (max)"),
        ("cold prefill", "3", "6.00 s", "6.20 s (max)"),
    )


def test_requests_that_measure_the_link_are_no_points(page: Page) -> None:
    (figure,) = section(page, "times").figures
    drawn = {trace["name"]: len(trace["x"]) for trace in figure.chart["data"] if trace["mode"] == "markers"}
    assert drawn == {"local hit": 3, "pool hit": 3, "declined": 1, "fallback": 1, "cold prefill": 3}


def test_points_that_the_summary_did_not_count_are_told(tmp_path: Path) -> None:
    arms = {**a_summary().arms, "cold": a_summary().arms["declined"]}
    told = section(run_page(a_demo(tmp_path, a_summary(arms=arms))), "times").note
    assert "do not number what the summary counted: cold prefill" in told


def test_predicted_and_actual_stand_apart_for_loads_and_computes(page: Page) -> None:
    (figure,) = section(page, "predictions").figures
    drawn = {trace["name"]: (trace["x"], trace["y"]) for trace in figure.chart["data"][1:]}
    assert drawn == {
        "loaded": ([pytest.approx(0.099)] * 3, [0.11] * 3),
        "computed": ([5.0], [5.2]),
    }


def test_the_books_balance(page: Page) -> None:
    found = section(page, "ledger")
    assert found.note == "The parts sum to the 1,200 prompt tokens."


def test_checks_that_hold_are_good(page: Page) -> None:
    assert page.tone == "good"


def test_a_check_that_does_not_hold_is_told_first(tmp_path: Path) -> None:
    failed = a_summary(checks={"outputs_identical": False, "recovered": True}, differing=("inspect/0",))
    page = run_page(a_demo(tmp_path, failed))
    assert page.tone == "bad"
    assert section(page, "checks").lead == "1 of 2 did not hold. Answered in more than one way: inspect/0."


def test_a_killed_run_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    page = run_page(a_killed_run(tmp_path))
    assert page.verdict == (
        "Loads took 4.89 s less than computing was predicted to.",
        "1 of 2 requests became ready from the pool.",
        "Decisions that turned out wrong lost 500 ms, as the other choice was predicted.",
        "There is no summary.json: the run did not come to its end, or was no experiment.",
    )


def test_a_killed_demo_leaves_its_link_out_as_well(tmp_path: Path) -> None:
    (a_demo(tmp_path) / "summary.json").unlink()
    (figure,) = section(run_page(tmp_path), "times").figures
    drawn = {trace["name"]: len(trace["x"]) for trace in figure.chart["data"] if trace["mode"] == "markers"}
    assert drawn["pool hit"] == 3


def test_the_example_run_has_a_page() -> None:
    assert "predictions" in [section.name for section in run_page(EXAMPLE).sections]


def test_another_run_stands_beside(tmp_path: Path) -> None:
    faster = a_summary(bytes={"published": 2**30, "read": 2**30, "never_read": 0})
    page = run_page(a_demo(tmp_path / "a", faster), beside=a_demo(tmp_path / "b"))
    found = section(page, "beside")
    assert found.lead == "A repetition: the runs differ in nothing that was recorded."
    assert found.table is not None
    assert ("bytes.read", "1.07374e+09", "2.14748e+09", "0.500") in found.table.rows


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").unlink()
    with pytest.raises(UsageError, match=r"neither decisions\.jsonl nor summary\.json"):
        run_page(tmp_path)


def test_a_summary_of_a_demo_that_does_not_parse_is_named(tmp_path: Path) -> None:
    path = a_demo(tmp_path) / "summary.json"
    path.write_text('{"arms": 1, "flips": [], "policies": {}}')
    with pytest.raises(FormatError, match=r"summary\.json: not the summary of a demo"):
        run_page(tmp_path)


def test_the_figures_of_another_command_are_a_table(tmp_path: Path) -> None:
    path = a_demo(tmp_path) / "summary.json"
    path.write_text('{"ramp": {"rate": 4.5, "ok": true}}')
    table = section(run_page(tmp_path), "summary").table
    assert table is not None
    assert table.rows == (("ramp.rate", "4.5"), ("ramp.ok", "True"))
