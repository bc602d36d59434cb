"""The HTML file of a page: escaped, in one piece, and closed to the network.

Owns the template, the style and the script that draws. Labels come from users' files, so three things stand
between them and the reader's browser: the template escapes them, JSON inside the page holds no `<`, and the
page's own policy runs only the two scripts whose digests it names and connects nowhere.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ... import __version__
from ...errors import UsageError
from .content import Page
from .library import chart_library

__all__ = ["check_place", "embed_json", "render", "write_page"]


def check_place(path: str | Path, *, overwrite: bool = False) -> None:
    """Raises `UsageError` where no page can be written: a command asks before its work, not after it."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{target}: is a folder; name a file in it, such as {target / 'page.html'}")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no folder {target.parent}; make it, or name another file")
    if os.path.lexists(target) and not overwrite:
        raise UsageError(f"{target} exists; name another file, or say --overwrite")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{target}: cannot write into {target.parent}; name another file")


def write_page(page: Page, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page, whole or not at all. Raises `UsageError` where that is not possible."""
    target = Path(path)
    check_place(target, overwrite=overwrite)
    text = render(page)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise UsageError(f"{target}: cannot write here: {error.strerror}; name another file") from error
    return target


def render(page: Page) -> str:
    """The page as HTML. Raises `MissingExtra` without the chart library."""
    library = chart_library()
    script = _asset("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}' 'sha256-{library.digest}'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    figures = {figure.name: figure.chart for section in page.sections for figure in section.figures}
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            page=page,
            figures=embed_json(figures),
            library=library,
            policy=policy,
            script=script,
            style=_asset("page.css"),
            version=__version__,
        )
    )


def embed_json(document: object) -> str:
    """JSON that may stand inside a script element: what could end it or begin another is escaped."""
    text = msgspec.json.encode(document).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("kvferry.report.page", "assets"),
        autoescape=select_autoescape(default=True, default_for_string=True, enabled_extensions=("jinja",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    return resources.files("kvferry.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
