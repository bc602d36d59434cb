"""Requests from recorded KV events: what an engine computed, as far as its cache tells.

The engine says which blocks it stored, not who asked. An event begins a request; one that goes on where a
request's last block ended may belong to it: in the same step, or several blocks at once within
`STEP_SECONDS`, it is a further piece of its prefill; a single block within `OUTPUT_SECONDS` is output. Blocks
that were found in the cache are told only for requests with kv_cache_report_mode "full" (vLLM 0.32). Without
it a prompt that was cached whole leaves no event, so that reuse comes out too low; the trace says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...errors import FormatError
from ..assemble import assemble
from ..chunk import Name, Trace, TraceChunk
from ..lines import read_lines, read_records
from ..row import Row
from ..sizes import block_size
from .record import EVENTS_VERSION, EventHeader, EventLine

__all__ = ["OUTPUT_SECONDS", "STEP_SECONDS", "open_vllm_events"]

STEP_SECONDS = 2.0
"""Longest pause between two steps of one prefill."""

OUTPUT_SECONDS = 30.0
"""Longest pause while the next block fills with output."""

_HEADER = msgspec.json.Decoder(EventHeader)


class _AnyLine(EventLine):
    """A line of the file, the header among them."""

    t: float = 0.0
    kvferry_vllm_events: int = 0


_LINES = msgspec.json.Decoder(_AnyLine)


@dataclass(slots=True)
class _Open:
    """A request that may still go on."""

    begun: float
    last: float
    keys: list[str]
    line: int
    session: str
    output_blocks: int = 0


def open_vllm_events(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads this recording."""
    own = _header(path).block_tokens
    trace.block_tokens = block_size(path, own, block_tokens)
    trace.naming = "keyed"
    trace.caveats = (
        "made from cache events: unless requests asked for kv_cache_report_mode full, a prompt that was "
        "cached whole left none, and reuse is a lower bound",
        "lengths are whole blocks",
    )

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        return assemble(trace, _rows(path, own, trace), own_block_tokens=own, sort=sort, named=named)

    trace.read = read


def _rows(path: Path, block_tokens: int, trace: Trace) -> Iterator[Row]:
    before: dict[str, str | None] = {}
    going: OrderedDict[tuple[int, str], _Open] = OrderedDict()
    name = str(path)

    def row(one: _Open) -> Row:
        output = one.output_blocks * block_tokens
        fields = {"session": one.session} if one.session else None
        tokens = len(one.keys) * block_tokens
        return Row(one.begun, tokens, output, one.keys, name, one.line, fields=fields)

    for line, event in read_records(path, _LINES, trace.problems):
        if event.kvferry_vllm_events or not event.stored or event.medium != "GPU":
            if event.lost:
                trace.problems.add(name, line, f"{event.lost} batches of events were lost before this one")
            continue
        while going and next(iter(going.values())).last < event.t - OUTPUT_SECONDS:
            yield row(going.popitem(last=False)[1])
        parent = event.parent
        for key in event.stored:
            before.setdefault(key, parent)
            parent = key
        one = going.pop((event.rank, event.parent), None) if event.parent is not None else None
        if one is not None and _goes_on(one, event):
            one.keys.extend(event.stored)
        elif one is not None and len(event.stored) == 1:
            one.output_blocks += 1
        else:
            if one is not None:
                yield row(one)
            keys = [*_chain(event.parent, before), *event.stored]
            one = _Open(event.t, event.t, keys, line, event.session)
        one.last = event.t
        end = (event.rank, event.stored[-1])
        if (same := going.pop(end, None)) is not None:
            yield row(same)
        going[end] = one
    for one in going.values():
        yield row(one)


def _goes_on(one: _Open, event: EventLine) -> bool:
    """Whether an event behind a request's last block is more of its prefill."""
    if one.output_blocks:
        return False
    return event.t == one.last or (len(event.stored) > 1 and event.t - one.last <= STEP_SECONDS)


def _chain(key: str | None, before: dict[str, str | None]) -> list[str]:
    """The blocks of a prefix, first to last."""
    found = []
    while key is not None:
        found.append(key)
        key = before.get(key)
    found.reverse()
    return found


def _header(path: Path) -> EventHeader:
    for line, text in read_lines(path):
        try:
            header = _HEADER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}:{line}: not the header of recorded KV events: {error}") from error
        if header.version != EVENTS_VERSION:
            raise FormatError(
                f"{path}: recorded KV events of version {header.version}; this one reads {EVENTS_VERSION}"
            )
        return header
    raise FormatError(f"{path}: empty; a recording of KV events begins with its header")
