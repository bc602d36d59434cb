"""Mooncake's JSONL: timestamp (ms), input_length, output_length, hash_ids; and files that add fields to it.

Source: the traces published with the Mooncake paper (FAST '25): blocks of 512 tokens, ids of chained hashes
remapped to integers, the last block named even where it is partial. Traces of the same shape with chat_id and
parent_chat_id (Alibaba's) give seconds, and blocks of 16. Other fields whose values are texts or whole
numbers become fields of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FormatError
from .assemble import assemble
from .chunk import Name, Trace, TraceChunk
from .lines import read_lines, read_records
from .row import Row
from .sizes import block_size

__all__ = ["BLOCK_TOKENS", "open_mooncake", "rows"]

BLOCK_TOKENS = 512
"""Tokens of a block in the published traces; the files do not say."""

_OWN = {"timestamp", "input_length", "output_length", "hash_ids"}
_RENAMED = {"type": "class", "chat_id": "session"}
_NEVER_FIELDS = {"parent_chat_id", "turn"}
_SAMPLE = 200


class _Head(msgspec.Struct):
    input_length: int
    hash_ids: list[Any]


def open_mooncake(path: Path, trace: Trace, block_tokens: int | None, sort: bool) -> None:
    """Set up a trace that reads this file."""
    sample = _sample(path)
    extra = _extra_fields(sample)
    per_second = 1.0 if any("parent_chat_id" in one for one in sample) else 1000.0
    own = _own_block(path, sample, block_tokens)
    trace.block_tokens = block_size(path, own, block_tokens)

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        found = rows(path, trace, extra, per_second)
        return assemble(trace, found, own_block_tokens=own, sort=sort, named=named)

    trace.read = read


def rows(path: Path, trace: Trace, extra: dict[str, str], per_second: float) -> Iterator[Row]:
    """The requests of the file; `extra` maps its further fields to names of the trace's."""
    record = msgspec.defstruct(
        "MooncakeLine",
        [
            ("timestamp", float),
            ("input_length", int),
            ("output_length", int, 0),
            ("hash_ids", list[int | str]),
            *(
                (f"extra_{number}", Any, msgspec.field(default=None, name=name))
                for number, name in enumerate(extra)
            ),
        ],
        gc=False,
        kw_only=True,
    )
    name = str(path)
    targets = [(f"extra_{number}", target) for number, target in enumerate(extra.values())]
    for line, found in read_records(path, msgspec.json.Decoder(record), trace.problems):
        one: Any = found
        fields = None
        if targets:
            fields = {
                target: str(value) for slot, target in targets if (value := getattr(one, slot)) is not None
            }
        yield Row(
            one.timestamp / per_second,
            one.input_length,
            one.output_length,
            one.hash_ids,
            name,
            line,
            fields=fields,
        )


def _sample(path: Path) -> list[dict[str, Any]]:
    found = []
    for _, line in islice(read_lines(path), _SAMPLE):
        try:
            one = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # booked when the rows are read
        if isinstance(one, dict):
            found.append(one)
    return found


def _extra_fields(sample: list[dict[str, Any]]) -> dict[str, str]:
    extra: dict[str, str] = {}
    for one in sample:
        for key, value in one.items():
            if key in _OWN or key in _NEVER_FIELDS or isinstance(value, bool):
                continue
            if isinstance(value, str | int):
                extra[key] = _RENAMED.get(key, key)
    return extra


def _own_block(path: Path, sample: list[dict[str, Any]], asked: int | None) -> int:
    """The size of block that the rows' counts agree with: 512 or 16 where they do, else what was asked."""
    heads = []
    for one in sample:
        try:
            heads.append(msgspec.convert(one, _Head))
        except msgspec.ValidationError:
            continue  # booked when the rows are read
    heads = [head for head in heads if head.input_length > 0]

    def agreeing(size: int) -> float:
        fits = sum(
            len(head.hash_ids) in (head.input_length // size, -(-head.input_length // size)) for head in heads
        )
        return fits / len(heads) if heads else 1.0

    sizes = [BLOCK_TOKENS, *(1 << power for power in range(3, 13))]
    best = max(sizes, key=agreeing)
    if agreeing(best) >= 0.5:
        return best
    if asked is not None and agreeing(asked) >= 0.5:
        return asked
    raise FormatError(
        f"{path}: the number of hash_ids agrees with no size of block from 8 to 4096 tokens (ceil of "
        "input_length / block); say --block-tokens if the size is another one"
    )
