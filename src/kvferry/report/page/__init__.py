"""One self-contained page for a browser: what a trace says, or what a run did.

A page is one HTML file that needs no network and sends nothing: style, data and the chart library lie
inside. `analysis` and `run` say what is on a page, `content` what a page is made of, `charts` how figures
are described, `document` writes the file, `library` finds the charts' code.
"""

from __future__ import annotations

from .analysis import analysis_page, write_analysis_page
from .run import run_page, write_run_page

__all__ = ["analysis_page", "run_page", "write_analysis_page", "write_run_page"]
