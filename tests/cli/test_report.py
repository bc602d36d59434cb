from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from shutil import copytree

import pytest

from kvferry.cli.main import main
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


def test_a_file_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.html").write_text("mine")
    assert main(["report", str(EXAMPLE), "--html", str(tmp_path / "mine.html")]) == 2
    assert "say --overwrite" in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_file_that_exists_is_replaced_where_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    assert run(str(EXAMPLE), "--html", str(tmp_path / "mine.html"), "--overwrite") == 0
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") != "mine"


def test_the_run_s_own_page_is_written_anew(tmp_path: Path) -> None:
    copytree(EXAMPLE, tmp_path / "run")
    (tmp_path / "run" / "report.html").write_text("old")
    assert run(str(tmp_path / "run")) == 0
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") != "old"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodir"], "nodir: there is no such folder"),
        ([str(EXAMPLE), "--html", "nodir/x.html"], "nodir/x.html: there is no folder nodir"),
        ([str(EXAMPLE), "--html", "."], "is a folder"),
    ],
)
def test_a_place_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_json_is_the_page_s_content_and_writes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(EXAMPLE, tmp_path / "run")
    assert run(str(tmp_path / "run"), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["page"] is None
    assert shown["sections"]["ledger"]["rows"][0]["outcome"] == "pool hit"
    assert not (tmp_path / "run" / "report.html").exists()


def test_json_names_the_page_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(str(EXAMPLE), "--json", "--html", str(page)) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(page)
    assert page.is_file()
