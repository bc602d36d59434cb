"""The gateway's log as a trace: one JSON object a line, keyed hashes and lengths, version 1.

    {"kvferry_gateway": 1, "arrival": wall seconds, "request_id": text, "prompt_tokens": integer,
     "block_tokens": integer, "keys": [32 hex digits of each full block, ...], "completion_tokens": integer,
     "model": text, "class": text, "tenant_class": text, "session": text, "replica": text,
     "boundary_tokens": integer}

The first six are always there; the others are left out where unknown. Owns this record, for the gateway
to write and for readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import FormatError
from .assemble import assemble
from .chunk import Name, Trace, TraceChunk
from .lines import read_lines, read_records
from .row import Row
from .sizes import block_size

__all__ = ["GATEWAY_VERSION", "GatewayRecord", "open_gateway", "rows"]

GATEWAY_VERSION = 1

_FIELDS = (("model", "model"), ("class", "class_"), ("tenant_class", "tenant_class"), ("session", "session"),
           ("replica", "replica"))  # fmt: skip


class GatewayRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One request as the gateway forwards it."""

    version: int = msgspec.field(name="kvferry_gateway")
    arrival: float
    """Wall clock, seconds since the epoch."""
    request_id: str
    prompt_tokens: int
    block_tokens: int
    keys: list[str]
    """`record_key` of each full block."""
    completion_tokens: int = 0
    model: str = ""
    class_: str = msgspec.field(default="", name="class")
    tenant_class: str = ""
    session: str = ""
    replica: str = ""
    boundary_tokens: int = -1


_DECODER = msgspec.json.Decoder(GatewayRecord)


def open_gateway(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads this log."""
    own = _own_block(path)
    trace.block_tokens = block_size(path, own, block_tokens)
    trace.naming = "keyed"

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        return assemble(trace, rows(path, own, trace), own_block_tokens=own, sort=sort, named=named)

    trace.read = read


def rows(path: Path, block_tokens: int, trace: Trace) -> Iterator[Row]:
    """The requests of the log, in the order of its lines."""
    name = str(path)
    for line, record in read_records(path, _DECODER, trace.problems):
        if record.version != GATEWAY_VERSION or record.block_tokens != block_tokens:
            trace.problems.add(
                name,
                line,
                f"version {record.version} and blocks of {record.block_tokens} tokens, where version "
                f"{GATEWAY_VERSION} and blocks of {block_tokens} are read",
            )
            continue
        fields = {key: value for key, slot in _FIELDS if (value := getattr(record, slot))}
        yield Row(
            record.arrival,
            record.prompt_tokens,
            record.completion_tokens,
            record.keys,
            name,
            line,
            boundary=record.boundary_tokens,
            fields=fields or None,
        )


def _own_block(path: Path) -> int:
    for _, line in read_lines(path):
        try:
            size = _DECODER.decode(line).block_tokens
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # booked when the rows are read
        if size > 0:
            return size
    raise FormatError(f"{path}: no record of the gateway's log can be read here")
