"""What a reader's browser makes of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.report.page import write_analysis_page, write_run_page

from .browser import needs_browser, rendered
from .runs import a_demo
from .samples import HOSTILE, an_analysis

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def analysis(folder: Path) -> str:
    return rendered(write_analysis_page(an_analysis(), folder / "analysis.html"), folder / "profile")


@pytest.fixture(scope="module")
def demo(folder: Path) -> str:
    return rendered(write_run_page(a_demo(folder / "run"), folder / "run.html"), folder / "profile")


@pytest.fixture(scope="module")
def hostile(folder: Path) -> str:
    result = an_analysis(path=HOSTILE, class_name=HOSTILE, mark_name=HOSTILE)
    return rendered(write_analysis_page(result, folder / "hostile.html"), folder / "profile")


def chart(document: str, name: str) -> str:
    """The drawn content of one chart."""
    start = document.index(f'id="{name}"')
    return document[start : document.index("</figure>", start)]


def test_every_figure_is_drawn(analysis: str) -> None:
    assert 'data-drawn="6"' in analysis


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("curve-chart", "scatterlayer"),
        ("misses-chart", "barlayer"),
        ("routing-chart", "barlayer"),
        ("flows-chart", "scatterlayer"),
        ("intervals-chart", "barlayer"),
        ("publication-chart", "barlayer"),
    ],
)
def test_a_chart_of_the_analysis_holds_marks(analysis: str, name: str, drawn: str) -> None:
    layer = chart(analysis, name).partition(drawn)[2]
    assert len(re.findall(r'<path class="(?:js-line|point)|<path d="M|<path [^>]*d="M', layer)) >= 2


@pytest.mark.parametrize(
    "words", ["one replica · 40 GiB", "the pool · 1.95 TiB", "forgets nothing: 37.4%", "S3-FIFO", "1 TiB"]
)
def test_the_curve_names_its_marks(analysis: str, words: str) -> None:
    assert words in chart(analysis, "curve-chart")


def test_the_worst_windows_are_named(analysis: str) -> None:
    drawn = chart(analysis, "flows-chart")
    assert "worst 15 min read: 46.0 Gbit/s" in drawn
    assert "worst 15 min written: 74.1 Gbit/s" in drawn


def test_colours_of_the_style_sheet_reach_the_charts(analysis: str) -> None:
    assert "rgb(31, 102, 193)" in chart(analysis, "curve-chart")
    assert "var(--series" not in chart(analysis, "curve-chart")


def test_a_dark_screen_gets_dark_charts(folder: Path) -> None:
    page = write_analysis_page(an_analysis(), folder / "dark.html")
    document = rendered(page, folder / "profile", "--blink-settings=preferredColorScheme=0")
    assert "rgb(106, 166, 240)" in chart(document, "curve-chart")


def test_every_figure_of_a_demo_is_drawn(demo: str) -> None:
    assert 'data-drawn="5"' in demo


def test_each_distribution_has_its_row(demo: str) -> None:
    drawn = chart(demo, "times-chart")
    assert [
        path
        for path in ("local hit", "pool hit", "declined", "fallback", "cold prefill")
        if path not in drawn
    ] == []


def test_no_trouble_is_shown(analysis: str, demo: str) -> None:
    for document in (analysis, demo):
        assert re.search(r'id="trouble"[^>]* hidden', document)


def test_a_label_of_a_file_runs_nothing(hostile: str) -> None:
    assert "<title>taken" not in hostile
    assert "<img" not in hostile


def test_a_hostile_label_is_shown_as_it_is(hostile: str) -> None:
    assert "&lt;/script&gt;&lt;script&gt;document.title='taken'" in hostile


def test_a_page_with_hostile_labels_is_drawn(hostile: str) -> None:
    assert 'data-drawn="6"' in hostile
