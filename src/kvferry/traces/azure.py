"""Azure's CSV of lengths: TIMESTAMP,ContextTokens,GeneratedTokens. It says nothing of what was asked.

Source: AzurePublicDataset, LLM inference traces 2023 and 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from .assemble import assemble
from .chunk import LENGTHS_ONLY, Name, Trace, TraceChunk
from .lines import read_lines
from .row import Row

__all__ = ["HEADER", "open_azure", "rows"]

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


def open_azure(path: Path, trace: Trace, sort: bool) -> None:
    """Set up a trace that reads this file. It has no blocks."""
    trace.has_blocks = False
    trace.block_tokens = 0
    trace.caveats = (LENGTHS_ONLY,)

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        return assemble(trace, rows(path, trace), sort=sort, named=named)

    trace.read = read


def rows(path: Path, trace: Trace) -> Iterator[Row]:
    """The requests of the file."""
    name = str(path)
    for line, text in read_lines(path):
        words = text.decode("utf-8", "replace").strip().split(",")
        if line == 1 and words[0].lstrip("\ufeff") == "TIMESTAMP":
            continue
        if len(words) != 3:
            if not text.endswith(b"\n"):
                return  # still being written
            trace.problems.add(
                name,
                line,
                f"{len(words)} column{'s' if len(words) > 1 else ''}, not the 3 of {HEADER.decode()}",
            )
            continue
        try:
            row = Row(_seconds(words[0]), int(words[1]), int(words[2]), (), name, line)
        except ValueError as error:
            trace.problems.add(name, line, f"{error}; a row is such as 2023-11-16 18:17:03.9799600,4808,10")
            continue
        yield row


def _seconds(text: str) -> float:
    """Seconds since the epoch; seven digits behind the point, where datetime takes six."""
    whole, _, fraction = text.partition(".")
    digits = fraction.split("+")[0]
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)
