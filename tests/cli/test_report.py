from __future__ import annotations

import webbrowser
from pathlib import Path
from shutil import copytree

import pytest

from kvferry.cli.report import app

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-run"


def run(*words: str) -> int:
    result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    assert isinstance(result, int)
    return result


def test_the_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(str(EXAMPLE), "--html", str(page)) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert page.is_file()


def test_the_page_lies_in_the_run_where_no_file_is_named(tmp_path: Path) -> None:
    copytree(EXAMPLE, tmp_path / "run")
    run(str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").is_file()


def test_nothing_is_opened_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run(str(EXAMPLE), "--html", str(tmp_path / "page.html"))
    assert opened == []


def test_the_page_is_opened_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run(str(EXAMPLE), "--html", str(tmp_path / "page.html"), "--open", "yes")
    assert opened == [(tmp_path / "page.html").as_uri()]
