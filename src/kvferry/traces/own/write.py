"""Writing kvferry's own trace format, chunk by chunk.

Owns the step from dense ids to runs. What was written is whole lines, so that a killed writer leaves a
readable file. Names that say something of a prompt are never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ... import __version__
from ..chunk import Name, Naming, TraceChunk
from ..lines import LineWriter
from .records import TRACE_VERSION, Header, Line

__all__ = ["TraceWriter", "runs_of"]


class TraceWriter:
    """Appends the chunks of one trace, in order, to a new file."""

    def __init__(
        self,
        path: Path,
        block_tokens: int,
        *,
        naming: Naming = "local",
        source: str = "",
        began: float | None = None,
        recipe: dict[str, object] | None = None,
        overwrite: bool = False,
    ) -> None:
        self._writer = LineWriter(path, overwrite=overwrite)
        self._keyed = naming == "keyed"
        self._next = 0
        header = Header(
            version=TRACE_VERSION,
            block_tokens=block_tokens,
            names="keyed" if self._keyed else "local",
            source=source,
            began=began,
            kvferry=__version__,
            recipe=recipe,
        )
        self._writer.append(header)
        self._writer.flush()

    def write(
        self,
        chunk: TraceChunk,
        names: Sequence[Name] = (),
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Add a chunk; `names` are those of its new blocks, `labels` the trace's."""
        runs, starts = runs_of(chunk)
        keys, key_ends = self._keys(chunk, names)
        columns = [(name, labels[name], column.tolist()) for name, column in chunk.fields.items() if labels]
        append = self._writer.append
        for row, (t, tokens, output, boundary, first, last) in enumerate(
            zip(
                chunk.arrival_seconds.tolist(),
                chunk.input_tokens.tolist(),
                chunk.output_tokens.tolist(),
                chunk.boundary_tokens.tolist(),
                starts[:-1],
                starts[1:],
                strict=True,
            )
        ):
            fields = {name: known[column[row]] for name, known, column in columns if column[row] >= 0}
            new = keys[key_ends[row] : key_ends[row + 1]] if self._keyed else []
            append(Line(t, tokens, output, runs[2 * first : 2 * last], new, boundary, fields or None))

    def flush(self) -> None:
        """What was written so far can be read."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close. Calling it twice is fine."""
        self._writer.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _keys(self, chunk: TraceChunk, names: Sequence[Name]) -> tuple[list[str | None], list[int]]:
        """Keys of the chunk's new blocks, and where each row's begin."""
        if not self._keyed:
            return [], []
        highest = np.maximum.accumulate(np.concatenate(([self._next - 1], chunk.blocks)))
        new = chunk.blocks > highest[:-1]
        self._next = int(highest[-1]) + 1
        ends = np.concatenate(([0], np.cumsum(new)))[chunk.offsets].tolist()
        return [_text(name) for name in names], ends


def _text(name: Name) -> str | None:
    if isinstance(name, bytes):
        return name.hex()
    return name if isinstance(name, str) else None


def runs_of(chunk: TraceChunk) -> tuple[list[int], list[int]]:
    """[start, count, ...] of the whole chunk, and how many runs stand before each row and at the end."""
    blocks, offsets = chunk.blocks, chunk.offsets
    if not len(blocks):
        return [], [0] * len(offsets)
    begins: npt.NDArray[np.bool_] = np.ones(len(blocks), dtype=np.bool_)
    begins[1:] = blocks[1:] != blocks[:-1] + 1
    begins[offsets[:-1][offsets[:-1] < len(blocks)]] = True
    places = np.flatnonzero(begins)
    pairs = np.empty((len(places), 2), dtype=np.int64)
    pairs[:, 0] = blocks[places]
    pairs[:, 1] = np.diff(places, append=len(blocks))
    return pairs.ravel().tolist(), np.searchsorted(places, offsets).tolist()
