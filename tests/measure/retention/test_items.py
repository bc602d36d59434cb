"""The user's items: read, refused with file and line, and counted by document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.errors import FormatError
from kvferry.measure.retention.items import one_document, read_items

GOOD = {"document": "a", "context": "some text", "continuation": " and more"}
CHOICE = {"context": "some text", "question": "which?", "choices": [" a", " b"], "answer": 1}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "items.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_both_forms_are_read(tmp_path: Path) -> None:
    first, second = read_items(written(tmp_path, GOOD, "", {**CHOICE, "context": "other"}))
    assert (first.document, first.continuation, first.is_choice) == ("a", " and more", False)
    assert (second.question, second.choices, second.answer) == ("which?", (" a", " b"), 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ([1], "list, not an object"),
        ({"context": "x"}, 'field "continuation"'),
        ({**GOOD, "context": "  "}, 'field "context"'),
        ({**GOOD, "prompt": "x"}, "'prompt' is not known"),
        ({**GOOD, "document": 7}, 'field "document"'),
        ({**CHOICE, "answer": 2}, 'field "answer" must be 0 to 1'),
        ({**CHOICE, "answer": True}, 'field "answer"'),
        ({**CHOICE, "choices": [" a"]}, "two texts at least"),
        ({**CHOICE, "choices": [" a", " a"]}, "all different"),
        ({**CHOICE, "choices": "ab"}, "a list of texts"),
        ({**CHOICE, "question": 3}, 'field "question"'),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, row: Any, said: str) -> None:
    path = written(tmp_path, GOOD, row)
    with pytest.raises(FormatError) as caught:
        read_items(path)
    assert f"{path}:2: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_a_text_may_hold_every_mark_that_json_allows(tmp_path: Path, mark: str) -> None:
    path = written(tmp_path, json.dumps({**GOOD, "context": f"one{mark}two"}, ensure_ascii=False), GOOD)
    assert [item.context for item in read_items(path)] == [f"one{mark}two", "some text"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no item"):
        read_items(written(tmp_path, ""))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_items(tmp_path / "none")


def test_documents_with_the_same_text_are_one(tmp_path: Path) -> None:
    found = read_items(written(tmp_path, GOOD, {**GOOD, "document": "b"}, {**GOOD, "context": "else"}))
    assert found[0].document == found[1].document == found[2].document


def test_one_name_and_one_text_join_what_they_touch(tmp_path: Path) -> None:
    """a and b share a text, b and c a name: all are one, and d is not."""
    rows = [
        {**GOOD, "document": "a", "context": "1"},
        {**GOOD, "document": "b", "context": " 1 "},
        {**GOOD, "document": "b", "context": "2"},
        {**GOOD, "document": "d", "context": "3"},
    ]
    found = one_document(read_items(written(tmp_path, *rows)))
    assert len({item.document for item in found[:3]}) == 1
    assert found[3].document != found[0].document


def test_rows_without_a_document_are_one_only_with_the_same_text(tmp_path: Path) -> None:
    found = read_items(written(tmp_path, CHOICE, {**CHOICE, "context": "other"}, {**CHOICE, "answer": 0}))
    assert found[0].document == found[2].document != found[1].document
