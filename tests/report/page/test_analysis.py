from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvferry.analysis.result import Analysis, TraceProblems
from kvferry.report.page import analysis_page
from kvferry.report.page.content import Page, Section

from .samples import an_analysis


@pytest.fixture(scope="module")
def page() -> Page:
    return analysis_page(an_analysis())


def section(page: Page, name: str) -> Section:
    (found,) = [section for section in page.sections if section.name == name]
    return found


def lengths_only() -> Analysis:
    """What a trace without blocks gives."""
    return msgspec.structs.replace(
        an_analysis(), hit=None, curve=(), sampled=None, policies=(), marks=(), intervals=(), misses=None,
        misses_routing=None, routing={}, pool_gain=None, worst_window=None, flows=None, classes=(), blocks=0,
        unique_blocks=0, unique_tokens=0, unique_bytes=None, cannot=("hits: the trace holds lengths only",),
        problems=TraceProblems(rows=0, first=()),
    )  # fmt: skip


def test_the_recommendation_comes_first(page: Page) -> None:
    assert page.verdict[0].startswith("Route by prefix and load first")


def test_the_order_of_questions(page: Page) -> None:
    assert [section.name for section in page.sections] == [
        "curve",
        "misses",
        "routing",
        "flows",
        "intervals",
        "publication",
        "classes",
        "denominators",
        "left-out",
    ]


def test_names_are_unique(page: Page) -> None:
    names = [section.name for section in page.sections]
    names += [figure.name for section in page.sections for figure in section.figures]
    assert len(set(names)) == len(names)


def test_every_figure_is_told_in_words(page: Page) -> None:
    assert [
        figure.name for section in page.sections for figure in section.figures if len(figure.alt) < 30
    ] == []


def test_the_curve_is_drawn_over_bytes(page: Page) -> None:
    (figure,) = section(page, "curve").figures
    exact = figure.chart["data"][0]
    assert (exact["name"], len(exact["x"])) == ("LRU, exact", 130)
    assert exact["x"][0] == 10_000 * 327_680


def test_the_curve_is_drawn_over_tokens_without_bytes() -> None:
    result = an_analysis()
    points = tuple(msgspec.structs.replace(point, capacity_bytes=None) for point in result.curve)
    marks = tuple(msgspec.structs.replace(mark, capacity_bytes=None) for mark in result.marks)
    told = msgspec.structs.replace(result, curve=points, marks=marks, policies=(), sampled=None)
    (figure,) = section(analysis_page(told), "curve").figures
    assert figure.chart["data"][0]["x"][0] == 10_000
    assert figure.chart["layout"]["xaxis"]["title"]["text"] == "capacity of one cache, tokens"


def test_each_policy_is_one_kind_of_point(page: Page) -> None:
    (figure,) = section(page, "curve").figures
    assert [trace["name"] for trace in figure.chart["data"][2:]] == [
        "S3-FIFO",
        "cost-aware (GDSF)",
        "Belady, the bound",
    ]


def test_each_capacity_is_marked(page: Page) -> None:
    (figure,) = section(page, "curve").figures
    assert [note["text"] for note in figure.chart["layout"]["annotations"]] == [
        "one replica · 40 GiB · 2.1%",
        "ten replicas · 400 GiB · 10.7%",
        "the pool · 1.95 TiB · 22.5%",
        "forgets nothing: 37.4%",
    ]


def test_a_line_ends_at_its_own_words(page: Page) -> None:
    (figure,) = section(page, "curve").figures
    layout = figure.chart["layout"]
    found = sorted(
        (-note["yshift"] / 16, shape["y1"])
        for note, shape in zip(layout["annotations"][:3], layout["shapes"][:3], strict=True)
    )
    assert [row for row, _ in found] == [0, 1, 2]
    assert found[0][1] == 1.0 > found[1][1] > found[2][1] > 0.8


def test_causes_and_what_mends_them_are_those_of_the_docs(page: Page) -> None:
    table = section(page, "misses").table
    assert table is not None
    docs = (Path(__file__).resolve().parents[3] / "docs" / "analysis.md").read_text().replace("`", "")
    assert [row[4] for row in table.rows if row[0] != "held" and f"| {row[4]} |" not in docs] == []


def test_the_series_ends_with_the_trace() -> None:
    result = an_analysis()
    assert result.flows is not None
    late = msgspec.structs.replace(result, span_seconds=result.flows.series[-1].start_seconds + 12.0)
    (figure,) = section(analysis_page(late), "flows").figures
    scale = 3600.0 if late.span_seconds > 7200 else 60.0
    assert figure.chart["data"][0]["x"][-1] == pytest.approx(late.span_seconds / scale)


def test_misses_sum_to_the_prompts(page: Page) -> None:
    found = section(page, "misses")
    assert found.note == "The parts sum to the 144,793,823 prompt tokens."
    (figure,) = found.figures
    assert sum(trace["x"][0] for trace in figure.chart["data"]) == pytest.approx(100.0)


def test_the_pool_is_set_against_the_best_local_routing(page: Page) -> None:
    assert section(page, "routing").lead == (
        "A pool adds 4.4 points to prefix load, the best local routing (1.14 times its hits); "
        "against random routing it would look like 3.5 times."
    )


def test_the_worst_windows_are_drawn(page: Page) -> None:
    (figure,) = section(page, "flows").figures
    read = figure.chart["layout"]["shapes"][0]
    assert (read["x0"], read["x1"]) == (pytest.approx(2200 / 60), pytest.approx(3100 / 60))


def test_a_window_as_long_as_the_trace_is_told_and_not_drawn() -> None:
    short = msgspec.structs.replace(an_analysis(), span_seconds=600.0)
    found = section(analysis_page(short), "flows")
    (figure,) = found.figures
    assert figure.chart["layout"]["shapes"] == []
    assert "That is the whole trace." in found.lead


def test_nothing_to_win_is_told() -> None:
    result = an_analysis()
    assert result.misses is not None
    moved = msgspec.structs.replace(result.misses, evicted=0, placement=0)
    found = section(analysis_page(msgspec.structs.replace(result, misses=moved)), "misses")
    assert found.lead.startswith("What was seen before is found again")


def test_the_life_of_a_block_is_told(page: Page) -> None:
    assert "Half of the reused tokens come back within 64 s" in section(page, "intervals").lead


def test_what_is_written_and_never_read_is_told(page: Page) -> None:
    assert "69.8% of them never read" in section(page, "publication").lead


def test_many_classes_are_cut_and_counted() -> None:
    result = an_analysis()
    many = tuple(msgspec.structs.replace(result.classes[0], name=f"class {n}") for n in range(60))
    found = section(analysis_page(msgspec.structs.replace(result, classes=many)), "classes")
    assert found.table is not None
    assert len(found.table.rows) == 40
    assert "20 smaller classes" in found.note


def test_bad_rows_are_told(page: Page) -> None:
    found = section(page, "left-out")
    assert found.lead == "2 rows could not be read and are not in the figures."
    assert found.table is not None
    assert ("line 17", "not JSON: chat") in found.table.rows


def test_a_trace_of_lengths_says_what_it_cannot_answer() -> None:
    page = analysis_page(lengths_only())
    assert [section.name for section in page.sections] == ["left-out"]
    assert [tile.label for tile in page.tiles] == ["Mean prompt", "Mean answer", "Arrivals"]


def test_an_empty_trace_has_a_page() -> None:
    empty = msgspec.structs.replace(
        lengths_only(), requests=0, input_tokens=0, output_tokens=0, span_seconds=0.0
    )
    assert analysis_page(empty).tiles == ()
