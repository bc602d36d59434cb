"""From a reader's rows to columns: order of arrival, dense block ids, labels, bad rows.

Owns everything that formats have in common. Rows that are a little out of order, as a log written at the end
of each request is, are put in order inside a window; one that lies further back is an error that names its
line. What is kept from row to row is one number and one dictionary entry a different block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from .chain import ChainCheck
from .chunk import Name, Trace, TraceChunk
from .ids import BlockIds
from .row import Row, flaw

__all__ = ["assemble"]

_WINDOW_ROWS = 4096
_WINDOW_NAMES = 1 << 20
_CHUNK_BLOCKS = 1 << 20
_LONGEST_SECONDS = 10 * 365.25 * 86_400.0
"""No trace spans more: what says so has a broken clock, and would cost memory for every minute between."""

_Ints = npt.NDArray[np.int64]


def assemble(
    trace: Trace,
    rows: Iterable[Row],
    *,
    own_block_tokens: int | None = None,
    sort: bool = False,
    named: bool = False,
) -> Iterator[tuple[TraceChunk, list[Name]]]:
    """The chunks of a trace, each with the names of its new blocks (none unless `named`).

    `own_block_tokens` is the source's block where it is smaller than the trace's: the trace's is a multiple.
    With `sort`, all rows are held and put in order, however far apart.
    """
    own = own_block_tokens or trace.block_tokens
    ids = BlockIds(named)
    chain = ChainCheck()
    columns = _Columns(trace.labels)
    origin: float | None = None
    last = -np.inf
    for batch in _ordered(_sound(trace, rows, own), sort):
        if origin is None:
            origin = batch[0].arrival
        if batch[0].arrival < last:
            raise _late(batch[0])
        batch = _near(trace, batch, origin)
        if not batch:
            continue
        last = batch[-1].arrival
        for part in _parts(batch, trace.has_blocks):
            blocks, offsets = _blocks(part, ids, own, trace.block_tokens, trace.has_blocks)
            chain.check(part, blocks, offsets)
            yield _chunk(part, origin, blocks, offsets, columns), ids.taken()


def _sound(trace: Trace, rows: Iterable[Row], own: int) -> Iterator[Row]:
    has_blocks, problems = trace.has_blocks, trace.problems
    for row in rows:
        wrong = flaw(row, own, has_blocks)
        if wrong is None:
            yield row
        else:
            problems.add(row.path, row.line, wrong)


def _ordered(rows: Iterable[Row], sort: bool) -> Iterator[list[Row]]:
    """Lists of rows by time of arrival; equal times keep the order of the file."""
    held: list[Row] = []
    names = 0
    for row in rows:
        held.append(row)
        names += len(row.names)
        if not sort and (len(held) >= 2 * _WINDOW_ROWS or (names >= 2 * _WINDOW_NAMES and len(held) > 1)):
            held.sort(key=_arrival)
            # Half of them leave; a later row may still go between those that stay.
            half = len(held) // 2
            yield held[:half]
            held = held[half:]
            names = sum(len(row.names) for row in held)
    if held:
        held.sort(key=_arrival)
        yield held


def _near(trace: Trace, rows: list[Row], origin: float) -> list[Row]:
    """Those that a trace which began at `origin` can have."""
    if rows[-1].arrival - origin <= _LONGEST_SECONDS:
        return rows
    for row in rows:
        if row.arrival - origin > _LONGEST_SECONDS:
            wrong = (
                f"arrival {row.arrival - origin:.3g} s after the first request, and no trace is longer than "
                "ten years: is this time, or the first, in another unit?"
            )
            trace.problems.add(row.path, row.line, wrong)
    return [row for row in rows if row.arrival - origin <= _LONGEST_SECONDS]


def _arrival(row: Row) -> float:
    return row.arrival


def _late(row: Row) -> FormatError:
    return FormatError(
        f"{row.path}:{row.line}: this request arrived before others that stand more than about "
        f"{_WINDOW_ROWS} requests further up; put the file in order with: kvferry trace convert --sort"
    )


def _parts(rows: list[Row], has_blocks: bool) -> Iterator[list[Row]]:
    """Rows in portions of bounded size, those with runs of numbers apart from those with names."""
    if not has_blocks:
        yield rows
        return
    for _, alike in groupby(rows, key=lambda row: (row.runs, row.scope if row.runs else 0)):
        part: list[Row] = []
        size = 0
        for row in alike:
            blocks = sum(row.names[1::2]) if row.runs else len(row.names)
            if part and size + blocks > _CHUNK_BLOCKS:
                yield part
                part, size = [], 0
            part.append(row)
            size += blocks
        yield part


def _blocks(
    rows: list[Row], ids: BlockIds, own: int, block_tokens: int, has_blocks: bool
) -> tuple[_Ints, _Ints]:
    """Dense ids of the rows' blocks, and where each row's begin."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    if not has_blocks:
        return np.empty(0, dtype=np.int64), offsets
    tokens = np.fromiter((row.input_tokens for row in rows), np.int64, len(rows))
    wanted = -(-tokens // block_tokens)
    np.cumsum(wanted, out=offsets[1:])
    if rows[0].runs:
        numbers = _expanded(rows)
        if own == block_tokens and len(numbers) == offsets[-1]:
            return ids.of_numbers(rows[0].scope, numbers, rows), offsets
        # The slow way: the numbers as names.
        counts = [sum(row.names[1::2]) for row in rows]
        ends = np.cumsum(counts).tolist()
        lists = [numbers[end - size : end].tolist() for end, size in zip(ends, counts, strict=True)]
    else:
        lists = [row.names for row in rows]
    factor = block_tokens // own
    dense: list[int] = []
    for row, names, size in zip(rows, lists, wanted.tolist(), strict=True):
        known = ids.scope(row.scope)
        if factor == 1:
            dense.extend(map(known.__getitem__, names))
            if len(names) < size:
                dense.append(ids.fresh())
            continue
        # A name stands for its whole prefix: every factor-th one names a larger block.
        whole = names[factor - 1 :: factor]
        dense.extend(map(known.__getitem__, whole))
        if len(whole) < size:
            complete = len(names) == -(-row.input_tokens // own)
            dense.append(known[names[-1]] if complete else ids.fresh())
    return np.array(dense, dtype=np.int64), offsets


def _expanded(rows: list[Row]) -> _Ints:
    """[start, count, ...] of all rows to the numbers themselves."""
    flat: list[int] = []
    for row in rows:
        flat.extend(row.names)
    pairs = np.array(flat, dtype=np.int64).reshape(-1, 2)
    starts, counts = pairs[:, 0], pairs[:, 1]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


def _chunk(rows: list[Row], origin: float, blocks: _Ints, offsets: _Ints, columns: _Columns) -> TraceChunk:
    n = len(rows)
    return TraceChunk(
        arrival_seconds=np.fromiter((row.arrival - origin for row in rows), np.float64, n),
        input_tokens=np.fromiter((row.input_tokens for row in rows), np.int64, n),
        output_tokens=np.fromiter((row.output_tokens for row in rows), np.int64, n),
        offsets=offsets,
        blocks=blocks,
        boundary_tokens=np.fromiter((row.boundary for row in rows), np.int64, n),
        fields=columns.of(rows),
    )


class _Columns:
    """Index columns of the fields seen so far; new values are added to the trace's labels."""

    def __init__(self, labels: dict[str, list[str]]) -> None:
        self._labels = labels
        self._index: dict[str, dict[str, int]] = {}

    def of(self, rows: list[Row]) -> dict[str, npt.NDArray[np.int32]]:
        """One column a field for these rows."""
        for row in rows:
            for name in row.fields or ():
                if name not in self._labels:
                    self._labels[name] = []
        return {name: self._column(name, rows) for name in self._labels}

    def _column(self, name: str, rows: list[Row]) -> npt.NDArray[np.int32]:
        labels = self._labels[name]
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = {value: number for number, value in enumerate(labels)}
        column = np.full(len(rows), -1, dtype=np.int32)
        for position, row in enumerate(rows):
            value = None if row.fields is None else row.fields.get(name)
            if value is None:
                continue
            number = index.get(value)
            if number is None:
                number = index[value] = len(labels)
                labels.append(value)
            column[position] = number
        return column
