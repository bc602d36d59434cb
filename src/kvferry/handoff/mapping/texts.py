"""A folder of text as documents, split so that no document is on two sides.

Owns the reading (plain text and JSON lines), the dropping of copies and the split. The side of a document
depends on its name and nothing else, so that more text leaves the split of the old as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ...errors import FormatError, UsageError
from .rows import Sequences

__all__ = ["Document", "Part", "cut_sequences", "read_documents", "split_documents"]

Part = Literal["train", "validation", "test"]

_PLAIN = frozenset({".txt", ".md", ".rst", ".py"})
_SHARES: tuple[tuple[Part, int], ...] = (("test", 15), ("validation", 15), ("train", 70))
"""Of a hundred documents."""


class Document(msgspec.Struct, frozen=True):
    """One text; `name` is its path under the folder, with the line for one of a JSON-lines file."""

    name: str
    text: str


def read_documents(folder: Path, *, least_characters: int = 400, option: str = "--text") -> list[Document]:
    """Every text under the folder, in the order of names; short ones and copies are left out.

    Files end in .txt, .md, .rst or .py, or in .jsonl with a field "text" in every line. Raises `FormatError`
    where there is no folder or nothing in it; `option` is what the folder was given as.
    """
    if not folder.is_dir():
        raise FormatError(
            f"{option} {folder}: no such folder; give one with .txt, .md, .rst, .py or .jsonl files"
        )
    seen: set[bytes] = set()
    found = []
    for path in sorted(folder.rglob("*")):
        for document in _documents_of(path, folder):
            digest = hashlib.sha256(document.text.encode()).digest()
            if len(document.text) >= least_characters and digest not in seen:
                seen.add(digest)
                found.append(document)
    if not found:
        raise FormatError(
            f"{option} {folder}: no .txt, .md, .rst, .py or .jsonl file of {least_characters} characters"
        )
    return found


def split_documents(documents: Sequence[Document]) -> dict[Part, list[Document]]:
    """Train, validation and test: 70, 15 and 15 of a hundred, by name; each has one at least.

    Raises `FormatError` for fewer than four documents: layers are chosen on two of training alone.
    """
    if len(documents) < 4:
        raise FormatError(
            f"{len(documents)} documents are too few for training (2), validation and test: give more files"
        )
    ordered = sorted(documents, key=lambda one: hashlib.sha256(one.name.encode()).digest())
    parts: dict[Part, list[Document]] = {"train": [], "validation": [], "test": []}
    for document in ordered:
        mark = int.from_bytes(hashlib.sha256(document.name.encode()).digest()[:4], "big") % 100
        for part, share in _SHARES:
            if mark < share:
                parts[part].append(document)
                break
            mark -= share
    for part, least in (("test", 1), ("validation", 1), ("train", 2)):
        while len(parts[part]) < least:
            richest = max(parts.values(), key=len)
            parts[part].append(richest.pop())
    return parts


def cut_sequences(
    parts: Mapping[Part, Sequence[Document]],
    encode: Callable[[str, str], Sequence[int]],
    tokens: int,
    length: int,
) -> Sequences:
    """About `tokens` token ids in sequences of at most `length`, in the shares of the split.

    `encode` gives the ids of (document's name, text). A part's documents give about equally much, and their
    sequences are mixed. Raises `UsageError` where a sequence would be too short to learn from.
    """
    if length < 8 or tokens < 4 * length:
        raise UsageError(
            f"{tokens} tokens in sequences of {length}: at least 8 a sequence, and four sequences"
        )
    cut: dict[Part, list[tuple[str, Sequence[int]]]] = {}
    for part, share in _SHARES:
        wanted, found = tokens * share // 100, []
        each = -(-wanted // (len(parts[part]) * length)) * length
        for document in parts[part]:
            # Hardly a token is longer than this many characters on average: the rest need not be encoded.
            ids = encode(document.name, document.text[: each * 8])[:each]
            for start in range(0, len(ids), length):
                piece = ids[start : start + length]
                if len(piece) >= 8 and wanted > 0:
                    wanted -= len(piece)
                    found.append((document.name, piece))
        cut[part] = sorted(found, key=_mixed)
    return Sequences(cut["train"], cut["validation"], cut["test"])


def _mixed(sequence: tuple[str, Sequence[int]]) -> bytes:
    """An order that mixes documents and is the same for the same text."""
    return hashlib.sha256(f"{sequence[0]} {list(sequence[1])}".encode()).digest()


def _documents_of(path: Path, folder: Path) -> Iterator[Document]:
    name = str(path.relative_to(folder))
    if not path.is_file():
        return
    try:
        if path.suffix in _PLAIN:
            yield Document(name, path.read_text(encoding="utf-8", errors="replace"))
        elif path.suffix == ".jsonl":
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield Document(f"{name}:{number}", _text(path, number, line))
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        fields = json.loads(line.decode("utf-8"))
    except ValueError as error:  # what is no UTF-8 is one too
        raise FormatError(f"{path}:{number}: not JSON: {error}") from error
    text = fields.get("text") if isinstance(fields, dict) else None
    if not isinstance(text, str):
        raise FormatError(f'{path}:{number}: no field "text"; write {{"text": "..."}}')
    return text
