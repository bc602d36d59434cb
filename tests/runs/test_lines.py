from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from kvferry.errors import FormatError, KvferryError
from kvferry.runs import LineWriter, read_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def test_records_come_back_in_order(path: Path) -> None:
    with LineWriter(path) as writer:
        for number in range(3):
            writer.append({"n": number})
    assert list(read_lines(path, dict)) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_record_is_in_the_file_at_once(path: Path) -> None:
    with LineWriter(path) as writer:
        writer.append({"n": 1})
        assert path.read_bytes() == b'{"n":1}\n'


def test_a_half_written_last_line_is_skipped_and_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b'{"n":1}\n{"n":')
    with caplog.at_level(logging.WARNING):
        assert list(read_lines(path, dict)) == [{"n": 1}]
    assert f"{path}:2" in caplog.text


def test_a_whole_last_line_without_a_break_counts(path: Path) -> None:
    path.write_bytes(b'{"n":1}\n{"n":2}')
    assert len(list(read_lines(path, dict))) == 2


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"\n", b'{"n":"\xff"}\n'])
def test_any_other_line_that_does_not_parse_is_an_error_with_its_number(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"n":1}\n' + line + b'{"n":3}\n')
    with pytest.raises(FormatError, match=r"decisions\.jsonl:2: "):
        list(read_lines(path, dict))


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        list(read_lines(path, dict))


def test_a_writer_cuts_off_what_a_killed_one_left(path: Path) -> None:
    path.write_bytes(b'{"n":1}\n{"n":' + b" " * 200_000)
    with LineWriter(path) as writer:
        writer.append({"n": 2})
    assert list(read_lines(path, dict)) == [{"n": 1}, {"n": 2}]


def test_a_file_of_one_half_line_is_emptied(path: Path) -> None:
    path.write_bytes(b'{"n":')
    LineWriter(path).close()
    assert path.read_bytes() == b""


def test_threads_do_not_tear_each_others_lines(path: Path) -> None:
    with LineWriter(path) as writer:
        threads = [
            threading.Thread(target=lambda mark=mark: [writer.append({"m": mark * 500}) for _ in range(50)])
            for mark in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(read_lines(path, dict))) == 200


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KvferryError, match="cannot write here"):
        LineWriter(tmp_path / "nowhere" / "x.jsonl")


def test_a_reader_may_go_on_behind_a_line_that_does_not_parse(path: Path) -> None:
    path.write_bytes(b'{"n":1}\ngarbage\n{"n":3}\n')
    skipped: list[str] = []
    assert list(read_lines(path, dict, skipped=skipped.append)) == [{"n": 1}, {"n": 3}]
    assert len(skipped) == 1
    assert "decisions.jsonl:2: " in skipped[0]
