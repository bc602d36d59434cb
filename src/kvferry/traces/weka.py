"""Agent sessions as Weka's kv-cache-tester has them: one JSON document a session, subagents nested.

Ids of blocks are comparable inside one document only, and only full blocks have one. A request's `t` is
seconds after the session's start. A `subagent` entry stands where its call returned: it began `duration_ms`
before its `t`, and its own requests count from there (three that ran side by side in a published session come
out as begun in the same millisecond, right after the call that made them). Sessions of several documents all
begin at 0 and are merged by time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import FormatError
from .assemble import assemble
from .chunk import Name, Problems, Trace, TraceChunk
from .lines import open_binary
from .row import Row
from .sizes import block_size

__all__ = ["open_weka", "session_rows", "weka_files"]


class _Entry(msgspec.Struct, gc=False):
    t: float
    type: str = "n"
    model: str | None = None
    input_tokens: int = msgspec.field(default=-1, name="in")
    output_tokens: int = msgspec.field(default=0, name="out")
    hash_ids: list[int] = []
    requests: list[_Entry] | None = None
    duration_ms: float = 0.0
    subagent_type: str = "subagent"
    agent_id: str = ""


class _Session(msgspec.Struct):
    block_size: int
    requests: list[_Entry]
    id: str = ""


_DECODER = msgspec.json.Decoder(_Session)


def weka_files(path: Path) -> list[Path]:
    """The documents of a folder, or the one document."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def open_weka(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads this document, or all of this folder."""
    files = weka_files(path)
    own = None
    for file in files:
        try:
            own = _load(file).block_size
            break
        except FormatError:
            continue  # booked when it is read
    if own is None:
        raise FormatError(f"{path}: no session can be read here; {_why(files)}")
    size = own
    trace.block_tokens = block_size(path, size, block_tokens)
    if len(files) > 1:
        trace.caveats = (
            "block ids are comparable inside one session only: reuse between sessions cannot be seen",
            "sessions have no common clock: all of them begin at 0",
        )

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        sessions = [session_rows(file, scope, size, trace.problems) for scope, file in enumerate(files)]
        merged = heapq.merge(*sessions, key=_arrival)
        return assemble(trace, merged, own_block_tokens=size, sort=sort, named=named)

    trace.read = read


def session_rows(path: Path, scope: int, block_tokens: int, problems: Problems) -> Iterator[Row]:
    """The requests of one document in order of time, those of its subagents among them.

    A document is read when its first request is asked for, and its bad entries are booked by their place.
    """
    try:
        session = _load(path)
        if session.block_size != block_tokens:
            raise FormatError(
                f"{path}: blocks of {session.block_size} tokens, where the other sessions have {block_tokens}"
            )
    except FormatError as error:
        problems.add(str(path), 0, str(error).removeprefix(f"{path}: "))
        return
    name = session.id or path.stem
    found: list[tuple[Row, str]] = []
    _walk(session.requests, 0.0, name, "main", "requests", found)
    found.sort(key=lambda pair: pair[0].arrival)
    for row, place in found:
        if row.input_tokens < 0:
            problems.add(str(path), 0, f"{place} has no `in` (input tokens)")
            continue
        row.path, row.scope = f"{path} {place}", scope
        yield row


def _walk(
    entries: list[_Entry], start: float, session: str, kind: str, place: str, found: list[tuple[Row, str]]
) -> None:
    for number, entry in enumerate(entries):
        here = f"{place}[{number}]"
        if entry.requests is not None:
            begun = start + entry.t - entry.duration_ms / 1000
            inner = f"{session}/{entry.agent_id or number}"
            _walk(entry.requests, begun, inner, entry.subagent_type, f"{here}.requests", found)
            continue
        fields = {"session": session, "class": kind}
        if entry.model is not None:
            fields["model"] = entry.model
        row = Row(start + entry.t, entry.input_tokens, entry.output_tokens, entry.hash_ids, fields=fields)
        found.append((row, here))


def _load(path: Path) -> _Session:
    with open_binary(path) as file:
        content = file.read()
    try:
        return _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error


def _why(files: list[Path]) -> str:
    if not files:
        return "the folder has no .json files"
    try:
        _load(files[0])
    except FormatError as error:
        return f"the first file says: {error}"
    return "none of them parses"


def _arrival(row: Row) -> float:
    return row.arrival
