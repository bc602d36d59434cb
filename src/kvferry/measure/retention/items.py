"""What is asked: a context, and what is to be made of it.

Owns an item's shape, the user's file of them, and which items are of one document. Knows no tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import FormatError

__all__ = ["USER_TASK", "Item", "one_document", "read_items"]

USER_TASK = "items"
"""The task of the user's own items."""

_CONTINUED = frozenset({"document", "context", "continuation"})
_CHOSEN = frozenset({"document", "context", "question", "choices", "answer"})
_FORMS = (
    '{"document": "id", "context": "text", "continuation": "text"} or '
    '{"document": "id", "context": "text", "question": "text", "choices": ["text", "text"], "answer": 0}'
)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A context that is handed over, and a continuation of it or a choice about it."""

    task: str
    document: str
    context: str
    continuation: str = ""
    question: str = ""
    """Read behind the context, by the receiver itself."""
    choices: tuple[str, ...] = ()
    """Each as it stands behind the question, with its space."""
    answer: int = 0

    @property
    def is_choice(self) -> bool:
        return bool(self.choices)


def read_items(path: Path) -> list[Item]:
    """The items of a JSON-lines file. Raises `FormatError` with file and line for a row that is none."""
    try:
        # Not splitlines: JSON's texts may hold U+2028, U+2029 and U+0085 as they are.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"--items {path}: cannot be read: {error}; give a file of JSON lines") from error
    found = [_item(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise FormatError(f"--items {path}: holds no item; write one a line: {_FORMS}")
    return one_document(found)


def one_document(items: Sequence[Item]) -> list[Item]:
    """The same items, those with one name or one context under one document's name."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.setdefault(name, name) != name:
            name = above[name]
        return name

    for item in items:
        ours, text = top(item.document), top(f"text {_digest(item.context)}")
        if ours != text:
            above[max(ours, text)] = min(ours, text)
    named: dict[str, str] = {}
    return [
        msgspec.structs.replace(item, document=named.setdefault(top(item.document), item.document))
        for item in items
    ]


def _item(place: str, line: str) -> Item:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise FormatError(f"{place}: not JSON ({error}); write {_FORMS}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{place}: {type(fields).__name__}, not an object; write {_FORMS}")
    known = _CHOSEN if "choices" in fields else _CONTINUED
    if unknown := sorted(fields.keys() - known):
        raise FormatError(f"{place}: field {unknown[0]!r} is not known here; write {_FORMS}")
    context = _text(place, fields, "context")
    document = fields.get("document", f"text {_digest(context)}")
    if not isinstance(document, str) or not document:
        raise FormatError(f'{place}: field "document" must be a text, not {document!r}')
    if "choices" not in fields:
        continuation = _text(place, fields, "continuation")
        return Item(task=USER_TASK, document=document, context=context, continuation=continuation)
    choices = fields["choices"]
    if not (isinstance(choices, list) and all(isinstance(one, str) and one for one in choices)):
        raise FormatError(f'{place}: field "choices" must be a list of texts, not {choices!r}')
    if len(set(choices)) < 2 or len(set(choices)) < len(choices):
        raise FormatError(f'{place}: field "choices" needs two texts at least, all different')
    answer = fields.get("answer")
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise FormatError(f'{place}: field "answer" must be 0 to {len(choices) - 1}, not {answer!r}')
    question = fields.get("question", "")
    if not isinstance(question, str):
        raise FormatError(f'{place}: field "question" must be a text, not {question!r}')
    return Item(
        task=USER_TASK,
        document=document,
        context=context,
        question=question,
        choices=tuple(choices),
        answer=answer,
    )


def _text(place: str, fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise FormatError(
            f'{place}: field "{name}" must be a text that says something, not {value!r}; write {_FORMS}'
        )
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
