"""Documents are read, copies dropped, and none is on two sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.errors import FormatError, UsageError
from kvferry.handoff.mapping.texts import Document, cut_sequences, read_documents, split_documents


def some(count: int) -> list[Document]:
    return [Document(f"d{at}", f"{at} " * 400) for at in range(count)]


def encode(_: str, text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_text_and_json_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x" * 500)
    (tmp_path / "deep").mkdir()
    lines = [json.dumps({"text": letter * 500}) for letter in "yz"]
    (tmp_path / "deep" / "b.jsonl").write_text("\n\n".join(lines))
    (tmp_path / "c.bin").write_bytes(b"w" * 500)
    assert [one.name for one in read_documents(tmp_path)] == ["a.md", "deep/b.jsonl:1", "deep/b.jsonl:3"]


def test_a_folder_with_a_document_s_ending_is_none(tmp_path: Path) -> None:
    (tmp_path / "pkg.py").mkdir()
    (tmp_path / "pkg.py" / "a.txt").write_text("x" * 500)
    assert [one.name for one in read_documents(tmp_path)] == ["pkg.py/a.txt"]


def test_json_lines_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes('{"text": "\u00e9"}'.encode("latin-1"))
    with pytest.raises(FormatError, match=r"b\.jsonl:1: not JSON"):
        read_documents(tmp_path)


def test_the_option_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="--fitted-on "):
        read_documents(tmp_path / "none", option="--fitted-on")


def test_copies_and_scraps_are_left_out(tmp_path: Path) -> None:
    for name, text in (("a", "x" * 500), ("b", "x" * 500), ("c", "short")):
        (tmp_path / f"{name}.txt").write_text(text)
    assert [one.name for one in read_documents(tmp_path)] == ["a.txt"]


@pytest.mark.parametrize(("line", "words"), [("no json", "b.jsonl:1: not JSON"), ('{"body": "x"}', '"text"')])
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "b.jsonl").write_text(line)
    with pytest.raises(FormatError, match=words):
        read_documents(tmp_path)


def test_an_empty_folder_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="400 characters"):
        read_documents(tmp_path)
    with pytest.raises(FormatError, match="no such folder"):
        read_documents(tmp_path / "none")


def test_every_document_is_on_one_side() -> None:
    parts = split_documents(some(200))
    names = [one.name for part in parts.values() for one in part]
    assert sorted(names) == sorted(one.name for one in some(200))


def test_the_shares_are_about_as_said() -> None:
    sizes = {part: len(found) for part, found in split_documents(some(1000)).items()}
    assert sizes["train"] == pytest.approx(700, abs=60)
    assert sizes["test"] == pytest.approx(150, abs=45)


def test_more_text_moves_no_document() -> None:
    def side(count: int) -> dict[str, str]:
        return {one.name: part for part, found in split_documents(some(count)).items() for one in found}

    before, after = side(50), side(200)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("count", [4, 5, 7])
def test_few_documents_still_give_every_side_one(count: int) -> None:
    parts = split_documents(some(count))
    assert [len(parts[part]) >= least for part, least in (("train", 2), ("validation", 1), ("test", 1))] == [
        True
    ] * 3


def test_three_documents_are_too_few() -> None:
    with pytest.raises(FormatError, match="give more files"):
        split_documents(some(3))


def test_sequences_come_in_the_shares_of_the_split() -> None:
    found = cut_sequences(split_documents(some(60)), encode, 8000, 32)
    sizes = [sum(len(ids) for _, ids in part) for part in (found.train, found.validation, found.test)]
    assert sizes == pytest.approx([5600, 1200, 1200], abs=64)


def test_a_long_document_does_not_crowd_out_the_others() -> None:
    parts = split_documents(some(20))
    long = Document(parts["train"][0].name, "word " * 100_000)
    parts["train"][0] = long
    train = cut_sequences(parts, encode, 4000, 32).train
    share = sum(len(ids) for name, ids in train if name == long.name) / sum(len(ids) for _, ids in train)
    assert share < 0.3


@pytest.mark.parametrize(("tokens", "length"), [(1000, 4), (100, 32)])
def test_sequences_too_short_or_too_few_are_refused(tokens: int, length: int) -> None:
    with pytest.raises(UsageError):
        cut_sequences(split_documents(some(8)), encode, tokens, length)
