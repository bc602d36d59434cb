from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import MissingExtra, UsageError
from kvferry.report.page import library
from kvferry.report.page.content import Figure, Page, Section, Table
from kvferry.report.page.document import embed_json, render, write_page

PAGE = Page(
    kind="Run",
    title="a & b",
    subtitle="",
    verdict=("Share.",),
    sections=(Section("one", "One", figures=(Figure("chart", {"data": [], "layout": {}}, "a chart"),)),),
)


@pytest.fixture(scope="module")
def html() -> str:
    return render(PAGE)


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False)))
def test_embedded_json_reads_back(document: dict[str, object]) -> None:
    assert json.loads(embed_json(document)) == document


@given(st.text())
def test_embedded_json_cannot_end_its_element(text: str) -> None:
    assert set("<>&\u2028\u2029") & set(embed_json([text, "</script>", "<!--"])) == set()


def test_what_is_not_a_number_is_null() -> None:
    assert embed_json([float("nan"), float("inf")]) == "[null,null]"


def test_titles_are_escaped(html: str) -> None:
    assert "<h1>a &amp; b</h1>" in html


def test_the_page_may_connect_nowhere(html: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "connect-src" not in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_the_page_refers_to_nothing_outside(html: str) -> None:
    shown = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="|url\(|@import|https?:', shown) == []


def test_only_the_scripts_of_the_page_may_run(html: str) -> None:
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    packed = re.search(r'id="library">(.*?)</script>', html, re.DOTALL)
    assert script is not None
    assert packed is not None
    ours, theirs = script[1].encode(), gzip.decompress(base64.b64decode(packed[1]))
    named = re.findall(r"sha256-([\w+/=]+)", html)
    assert named == [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (ours, theirs)]


def test_a_page_is_the_same_twice(html: str) -> None:
    assert render(PAGE) == html


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    written = write_page(PAGE, tmp_path / "page.html")
    assert written.read_text(encoding="utf-8").endswith("</html>")
    assert [file.name for file in written.parent.iterdir()] == ["page.html"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/page\.html: there is no folder"):
        write_page(PAGE, tmp_path / "file" / "page.html")


def test_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        write_page(PAGE, tmp_path / "new" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.html exists; name another file, or say --overwrite"):
        write_page(PAGE, tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_file_that_exists_is_replaced_where_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    write_page(PAGE, tmp_path / "mine.html", overwrite=True)
    assert (tmp_path / "mine.html").read_text(encoding="utf-8").endswith("</html>")


def test_an_error_names_the_file_and_not_its_draft() -> None:
    with pytest.raises(UsageError) as caught:
        write_page(PAGE, "/proc/page.html")
    assert str(caught.value).startswith("/proc/page.html: cannot write")
    assert "/." not in str(caught.value)


def test_many_rows_stand_behind_a_line_that_opens_them() -> None:
    table = Table(("counter", "A"), (("a_total", "1"), ("b_total", "2")))
    page = replace(PAGE, sections=(Section(name="metrics", title="Metrics", more=table),))
    html = render(page)
    assert re.search(r"<details><summary>2 rows</summary>.*b_total.*</details>", html, re.DOTALL)


def test_without_the_charts_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(library.metadata, "distribution", missing)
    with pytest.raises(MissingExtra, match=r"pip install .*\[report\]"):
        library.chart_library.__wrapped__()
