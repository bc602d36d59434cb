"""The code of the charts, found in the installed package and packed to lie inside a page.

plotly.js comes with the distribution `plotly` (extra `report`); only its one file of JavaScript is read and
nothing of its Python is imported. Packed (gzip, base64) it is 2 MB in place of 5.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from ...errors import MissingExtra

__all__ = ["Library", "chart_library"]

_FILE = "plotly/package_data/plotly.min.js"


@dataclass(frozen=True, slots=True)
class Library:
    """JavaScript that defines `Plotly`."""

    version: str
    packed: str
    """gzip, then base64."""
    digest: str
    """SHA-256 of the source in base64, as a content security policy names it."""


@cache
def chart_library() -> Library:
    """The installed plotly.js. Raises `MissingExtra` where it is not installed."""
    try:
        path = Path(str(metadata.distribution("plotly").locate_file(_FILE)))
        source = path.read_bytes()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise MissingExtra("a page with charts", "report") from error
    # A browser normalises line ends before it compares digests.
    source = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    version = re.search(rb"plotly\.js v(\d+\.\d+\.\d+)", source[:400])
    return Library(
        version=version[1].decode() if version else "",
        packed=base64.b64encode(gzip.compress(source, compresslevel=6, mtime=0)).decode(),
        digest=base64.b64encode(hashlib.sha256(source).digest()).decode(),
    )
