"""Reading kvferry's own trace format: one file, or a folder of files that are merged by time.

One file is read by numbers alone. In a folder, blocks of keyed files are equal where their keys are; blocks
of the others are comparable inside their file only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...errors import FormatError
from ..assemble import assemble
from ..chunk import LENGTHS_ONLY, Name, Problems, Trace, TraceChunk
from ..lines import read_lines
from ..row import Row
from ..sizes import block_size
from .records import TRACE_VERSION, Header, Line

__all__ = ["open_own", "own_files", "read_header"]

_LINES = msgspec.json.Decoder(Line)
_HEADERS = msgspec.json.Decoder(Header)
_KEYED_SCOPE = 0


def own_files(path: Path) -> list[Path]:
    """The files of a folder, or the one file."""
    return sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]


def open_own(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads this file or folder."""
    files = own_files(path)
    headers = [read_header(file) for file in files]
    if not headers:
        raise FormatError(f"{path}: the folder has no .jsonl files")
    own = headers[0].block_tokens
    for file, header in zip(files, headers, strict=True):
        if header.block_tokens != own:
            raise FormatError(f"{file}: blocks of {header.block_tokens} tokens, where {files[0]} has {own}")
    trace.has_blocks = own > 0
    trace.block_tokens = block_size(path, own, block_tokens) if own else 0
    keyed = all(header.names == "keyed" for header in headers)
    trace.naming = "keyed" if keyed else "local"
    if not own:
        trace.caveats = (LENGTHS_ONLY,)
    elif len(files) > 1 and not keyed:
        trace.caveats = ("files without keys: reuse between them cannot be seen",)
    clocked = len(files) > 1 and all(header.began is not None for header in headers)

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        if len(files) == 1:
            return _read_one(files[0], trace, own, sort, named and keyed, named)
        streams = [
            _keyed_rows(file, scope, header, clocked, trace.problems)
            for scope, (file, header) in enumerate(zip(files, headers, strict=True), start=1)
        ]
        merged = heapq.merge(*streams, key=lambda row: row.arrival)
        return assemble(trace, merged, own_block_tokens=own or None, sort=sort, named=named)

    trace.read = read


def read_header(path: Path) -> Header:
    """The first line of a file. Raises `FormatError` when it is none, or is of another version."""
    for line, text in read_lines(path):
        try:
            header = _HEADERS.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}:{line}: not the header of a kvferry trace: {error}") from error
        if header.version != TRACE_VERSION:
            raise FormatError(
                f"{path}: kvferry trace of version {header.version}; this one reads {TRACE_VERSION}"
            )
        if header.block_tokens < 0:
            raise FormatError(f"{path}:{line}: block_tokens is {header.block_tokens}: write 0 or more")
        return header
    raise FormatError(f"{path}: empty; a kvferry trace begins with its header")


def _read_one(
    path: Path, trace: Trace, own: int, sort: bool, keyed: bool, named: bool
) -> Iterator[tuple[TraceChunk, list[Name]]]:
    keys: dict[int, str | None] = {}
    rows = _rows(path, 0, 0.0, trace.problems, keys if keyed else None)
    for chunk, names in assemble(trace, rows, own_block_tokens=own or None, sort=sort, named=named):
        yield chunk, [_key(keys, name) for name in names] if keyed else names


def _key(keys: dict[int, str | None], name: Any) -> Name:
    return keys.pop(name[1], None) if isinstance(name, tuple) else None


def _rows(
    path: Path, scope: int, begun: float, problems: Problems, keys: dict[int, str | None] | None
) -> Iterator[Row]:
    name = str(path)
    first = True
    decode = _LINES.decode
    for number, text in read_lines(path):
        if first:
            first = False
            continue
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if text.endswith(b"\n"):
                problems.add(name, number, str(error))
                continue
            return  # the writer is still at work, or was killed
        if keys is not None and line.keys:
            _remember(line, keys)
        yield Row(
            begun + line.t,
            line.input_tokens,
            line.output_tokens,
            line.ids,
            name,
            number,
            scope,
            True,
            line.boundary,
            line.fields,
        )


def _remember(line: Line, keys: dict[int, str | None]) -> None:
    numbers = _numbers(line.ids)
    if len(line.keys) <= len(numbers):
        keys.update(zip(numbers[len(numbers) - len(line.keys) :], line.keys, strict=True))


def _keyed_rows(path: Path, scope: int, header: Header, clocked: bool, problems: Problems) -> Iterator[Row]:
    """Rows with keys for names where the file has them, else with its numbers."""
    keys: dict[int, str | None] = {}
    begun = (header.began or 0.0) if clocked else 0.0
    for row in _rows(path, scope, begun, problems, keys):
        numbers = _numbers(row.names)
        row.runs = False
        if header.names == "keyed":
            # A number whose row was bad, or a partial block, has no key: it is this file's own.
            row.names = [keys.get(number) or (scope, number) for number in numbers]
            row.scope = _KEYED_SCOPE
        else:
            row.names = numbers
        yield row


def _numbers(runs: Any) -> list[int]:
    numbers: list[int] = []
    for start, count in zip(runs[::2], runs[1::2], strict=False):
        numbers.extend(range(start, start + count))
    return numbers
