"""`kvferry report RUN`: a run directory as one self-contained page for a browser, or as JSON."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..report.page import run_page
from ..report.page.content import Page, Section
from ..report.page.document import check_place, write_page
from .output import Json, OverwritePage, write_json

__all__ = ["app", "offer_to_open"]

app = App(name="report")

Open = Annotated[Literal["yes", "no"], Parameter(name="--open")]


@app.default
def run(
    run: str,
    /,
    *,
    html: str | None = None,
    overwrite: OverwritePage = False,
    beside: str | None = None,
    open_page: Open = "no",
    json: Json = False,
) -> int:
    """A run as one page: distributions, ledger, predicted and actual, checks. It needs no network.

    Prints the path of the page; with --json its content, and writes a page only where --html names one.

    Parameters
    ----------
    run
        A run directory.
    html
        A new file; where not given report.html in the run directory, which is the run's own and written anew
        each time.
    beside
        Another run directory, to compare with. The runs may differ in one factor.
    open_page
        yes: also open the page in a browser.
    """
    if html is not None:
        check_place(html, overwrite=overwrite)
    page = run_page(run, beside=beside)
    written = None
    if html is not None:
        written = write_page(page, html, overwrite=overwrite)
    elif not json:
        written = write_page(page, Path(run) / "report.html", overwrite=True)
    if json:
        write_json({**_document(page), "page": None if written is None else str(written)})
    else:
        print(written)
    if written is not None:
        offer_to_open(written, open_page)
    return 0


def offer_to_open(page: Path, wanted: Literal["yes", "no"]) -> None:
    """Open the page in the user's browser where that was asked for."""
    if wanted == "yes":
        webbrowser.open(page.resolve().as_uri())


def _document(page: Page) -> dict[str, Any]:
    """The page's words and tables; its charts draw the same numbers."""
    return {
        "title": page.title,
        "subtitle": page.subtitle,
        "verdict": page.verdict,
        "figures": {tile.label: {"value": tile.value, "note": tile.note} for tile in page.tiles},
        "sections": {section.name: _section(section) for section in page.sections},
        "facts": dict(page.facts),
    }


def _section(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {"title": section.title, "lead": section.lead, "note": section.note}
    if section.checks:
        found["checks"] = {check.name: check.held for check in section.checks}
    if section.table is not None:
        found["rows"] = [dict(zip(section.table.columns, row, strict=True)) for row in section.table.rows]
    return found
