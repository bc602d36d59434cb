"""What is on the page of a map's retention, and that a browser draws it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvferry.report.page.document import render
from kvferry.report.retention import retention_page, write_retention_page
from kvferry.runs.retention_summary import Refused, Required, Retention

from ..page.browser import needs_browser, rendered
from .found import a_retention, between


def names(found: Retention) -> list[str]:
    return [section.name for section in retention_page(found).sections]


def test_every_question_has_its_section() -> None:
    assert names(a_retention()) == [
        "arms",
        "horizon-agreement",
        "horizon-nll",
        "beyond",
        "longer",
        "hold-back",
        "turns",
        "answers",
        "shares",
        "how",
    ]


def test_the_verdict_comes_first() -> None:
    page = retention_page(a_retention())
    assert (page.verdict[0], page.tone) == ("Do not use.", "bad")
    assert "Fixed beforehand" in page.verdict[-1]


def test_longer_contexts_have_a_sentence_and_a_table_of_their_own() -> None:
    page = retention_page(a_retention())
    assert "On contexts of 400 to 512 tokens, longer than the 256 calibrated positions: do not use; low." in (
        page.verdict
    )
    (section,) = [one for one in page.sections if one.name == "longer"]
    assert "16 items of 16 documents, contexts of 400 to 512 tokens" in section.lead
    assert section.table is not None
    assert [row[0] for row in section.table.rows][:3] == ["target native", "source alone", "mapped"]


def test_a_map_to_be_used_is_good() -> None:
    found = a_retention()
    verdict = msgspec.structs.replace(found.verdict, answer="use", usable=True, reasons=())
    page = retention_page(msgspec.structs.replace(found, verdict=verdict))
    assert (page.verdict[0], page.tone) == ("Use.", "good")


def test_a_requirement_that_is_not_met_makes_it_bad() -> None:
    one = Required(text="top1>=1", name="top1", end="low", bound=1.0, figure=between(0.5, 0.6), met=False)
    found = a_retention()
    verdict = msgspec.structs.replace(found.verdict, answer="use", usable=True)
    page = retention_page(msgspec.structs.replace(found, required=(one,), verdict=verdict))
    assert page.tone == "bad"
    assert page.sections[0].checks[0].name == "top1>=1: the lower end is 0.5000"


def test_choices_alone_have_no_curves() -> None:
    found = msgspec.structs.replace(
        a_retention(),
        nll_per_character={},
        curve=(),
        hold_back=(),
        beyond=Refused(reason="no item"),
        longer=Refused(reason="no item"),
        turns=Refused(reason="no text"),
    )
    assert names(found) == ["turns", "answers", "shares", "how"]


def test_a_figure_that_is_refused_says_why() -> None:
    page = retention_page(a_retention())
    (shares,) = [section for section in page.sections if section.name == "shares"]
    assert shares.table is not None
    assert any("refused: no gap" in row[1] for row in shares.table.rows)


def test_names_of_files_are_escaped() -> None:
    found = msgspec.structs.replace(a_retention(), source="<script>alert(1)</script>")
    pytest.importorskip("plotly")
    assert "<script>alert" not in render(retention_page(found))


@needs_browser
@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = write_retention_page(a_retention(), tmp_path / "page.html")
    assert 'data-drawn="7"' in rendered(page, tmp_path / "profile")
