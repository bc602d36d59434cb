"""A whole trace as plain lists, for comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry.traces import Trace

__all__ = ["Seen", "read"]


@dataclass(frozen=True)
class Seen:
    """One request."""

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    boundary: int
    fields: tuple[tuple[str, str], ...]


def read(trace: Trace) -> list[Seen]:
    """Every request; checks on the way what every chunk promises."""
    found: list[Seen] = []
    highest = -1
    last = 0.0
    for chunk in trace.chunks():
        assert len(chunk.offsets) == len(chunk) + 1
        assert chunk.offsets[0] == 0
        assert chunk.offsets[-1] == len(chunk.blocks)
        columns: dict[str, Any] = {name: column.tolist() for name, column in chunk.fields.items()}
        for row in range(len(chunk)):
            blocks = chunk.blocks[chunk.offsets[row] : chunk.offsets[row + 1]].tolist()
            arrival = float(chunk.arrival_seconds[row])
            tokens = int(chunk.input_tokens[row])
            assert arrival >= last
            last = arrival
            if trace.has_blocks:
                assert len(blocks) == -(-tokens // trace.block_tokens)
            for block in blocks:
                assert block <= highest + 1
                highest = max(highest, block)
            fields = tuple(
                (name, trace.labels[name][column[row]])
                for name, column in columns.items()
                if column[row] >= 0
            )
            found.append(
                Seen(
                    arrival,
                    tokens,
                    int(chunk.output_tokens[row]),
                    tuple(blocks),
                    int(chunk.boundary_tokens[row]),
                    tuple(sorted(fields)),
                )
            )
    return found
