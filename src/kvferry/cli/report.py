"""`kvferry report RUN`: a run directory as one self-contained page for a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ..report.page import write_run_page

__all__ = ["app", "offer_to_open"]

app = App(name="report")

Open = Annotated[Literal["yes", "no"], Parameter(name="--open")]


@app.default
def run(run: str, /, *, html: str | None = None, beside: str | None = None, open_page: Open = "no") -> int:
    """A run as one page: distributions, ledger, predicted and actual, checks. It needs no network.

    Prints the path of the page.

    Parameters
    ----------
    run
        A run directory.
    html
        The file to write; report.html in the run directory where not given.
    beside
        Another run directory, to compare with. The runs may differ in one factor.
    open_page
        yes: also open the page in a browser.
    """
    page = write_run_page(run, Path(html) if html is not None else Path(run) / "report.html", beside=beside)
    print(page)
    offer_to_open(page, open_page)
    return 0


def offer_to_open(page: Path, wanted: Literal["yes", "no"]) -> None:
    """Open the page in the user's browser where that was asked for."""
    if wanted == "yes":
        webbrowser.open(page.resolve().as_uri())
