"""Replicas' decisions.jsonl as a trace: which blocks were asked for, whatever mode the gate was in.

Owns the few fields of a record that say what was asked; the others are the runs room's. Keys are keyed
hashes of full blocks. A prompt whose blocks were not looked up (mode off) has no keys and is a bad row.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import FormatError
from .assemble import assemble
from .chunk import Name, Problems, Trace, TraceChunk
from .lines import read_lines, read_records
from .row import Row
from .sizes import block_size

__all__ = ["AskedRecord", "decision_files", "decision_rows", "open_decisions", "row_of"]


class AskedRecord(msgspec.Struct, gc=False):
    """The part of a decision record that says what was asked."""

    version: int
    request_id: str
    arrival: float
    prompt_tokens: int
    block_tokens: int
    keys: list[str] = []
    replica: str = ""
    tenant_class: str = ""
    mode: str = ""


_DECODER = msgspec.json.Decoder(AskedRecord)


def decision_files(path: Path) -> list[Path]:
    """The file itself; of a folder its decisions.jsonl, or those of the run directories in it."""
    if not path.is_dir():
        return [path]
    own = path / "decisions.jsonl"
    return [own] if own.is_file() else sorted(path.glob("*/decisions.jsonl"))


def open_decisions(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads these records, merged by time where there are several files."""
    files = decision_files(path)
    own = _own_block(files)
    if own is None:
        raise FormatError(f"{path}: no decision record can be read here")
    size = own
    trace.block_tokens = block_size(path, size, block_tokens)
    trace.naming = "keyed"
    trace.caveats = ("a decision record does not say how many tokens were generated",)

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        merged = heapq.merge(
            *(decision_rows(file, size, trace.problems) for file in files), key=lambda row: row.arrival
        )
        return assemble(trace, merged, own_block_tokens=size, sort=sort, named=named)

    trace.read = read


def decision_rows(path: Path, block_tokens: int, problems: Problems) -> Iterator[Row]:
    """The requests of one file, in the order of its lines."""
    for line, record in read_records(path, _DECODER, problems):
        row = row_of(record, block_tokens, str(path), line, problems)
        if row is not None:
            yield row


def row_of(record: AskedRecord, block_tokens: int, path: str, line: int, problems: Problems) -> Row | None:
    """The request of one record; None, and a problem, where it cannot be one of this trace's."""
    if record.block_tokens != block_tokens:
        problems.add(
            path, line, f"blocks of {record.block_tokens} tokens, where the first record has {block_tokens}"
        )
        return None
    if not record.keys and record.prompt_tokens >= block_tokens:
        problems.add(path, line, f"no keys: the blocks of {record.request_id!r} were not looked up")
        return None
    fields = {"tenant_class": record.tenant_class, "replica": record.replica}
    fields = {name: value for name, value in fields.items() if value}
    return Row(record.arrival, record.prompt_tokens, 0, record.keys, path, line, fields=fields)


def _own_block(files: list[Path]) -> int | None:
    for file in files:
        for _, line in read_lines(file):
            try:
                size = _DECODER.decode(line).block_tokens
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # booked when the rows are read
            if size > 0:
                return size
    return None
