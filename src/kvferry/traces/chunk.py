"""What a trace is to everything that reads one: runs of requests as columns, and what was wrong on the way.

Owns `TraceChunk`, `Trace` and `Problems`. A trace is read as a stream of chunks, so that one larger than
memory goes through; what a reader keeps grows with the number of different blocks, never with the number of
requests. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FormatError

__all__ = [
    "FORMATS",
    "LENGTHS_ONLY",
    "Format",
    "Name",
    "Naming",
    "Problem",
    "Problems",
    "Trace",
    "TraceChunk",
]

Format: TypeAlias = Literal[
    "mooncake", "weka", "azure", "openai", "vllm-events", "decisions", "gateway", "kvferry"
]

FORMATS: tuple[Format, ...] = (
    "mooncake",
    "weka",
    "azure",
    "openai",
    "vllm-events",
    "decisions",
    "gateway",
    "kvferry",
)
"""Every format that `open_trace` knows."""

Name: TypeAlias = "str | bytes | int | tuple[int, int] | None"
"""What a source calls a block: a hash, a number, or a number inside one file of several."""

Naming: TypeAlias = Literal["local", "keyed", "plain"]
"""local: numbers that mean something inside one file only. keyed: hashes under a secret, which say nothing
of the prompt. plain: hashes that whoever guesses the prompt can make; they are never written."""

LENGTHS_ONLY = "lengths and times only: hits, reuse distances, misses and classes cannot be computed"
"""The caveat of a trace without blocks."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TraceChunk:
    """A run of requests in order of arrival, as columns; n requests, m block references."""

    arrival_seconds: npt.NDArray[np.float64]
    """(n,) seconds after the trace's first request, never decreasing along the trace."""
    input_tokens: npt.NDArray[np.int64]
    """(n,)"""
    output_tokens: npt.NDArray[np.int64]
    """(n,) 0 where unknown."""
    offsets: npt.NDArray[np.int64]
    """(n + 1,) request i's blocks are `blocks[offsets[i]:offsets[i + 1]]`, from its first block on."""
    blocks: npt.NDArray[np.int64]
    """(m,) dense ids from 0 in order of first appearance in the trace. An id names a whole prefix up to and
    with that block, so equal ids mean equal prefixes. A request has ceil(input_tokens / block_tokens) of
    them: the last may be a partial block, with an id of its own where the format names only full ones. A
    trace without blocks has none."""
    boundary_tokens: npt.NDArray[np.int64]
    """(n,) tokens from the front that were declared fit to be published; -1: none declared."""
    fields: Mapping[str, npt.NDArray[np.int32]]
    """Name to (n,) indices into the trace's `labels` of that name; -1 where a request has none. A name that
    no request has had yet is absent."""

    def __len__(self) -> int:
        return len(self.input_tokens)


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad row: where it stands and what is wrong with it."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(slots=True)
class Problems:
    """Bad rows of a trace: all of them counted, the first few kept. With `strict` the first one raises."""

    strict: bool = False
    count: int = 0
    first: list[Problem] = field(default_factory=list)

    def add(self, path: str, line: int, message: str) -> None:
        """Book a bad row; `line` counts from 1, 0 where there are none. Raises `FormatError` if strict."""
        problem = Problem(path, line, message)
        if self.strict:
            raise FormatError(f"{problem}; without --strict such a row is counted and left out")
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(problem)

    def clear(self) -> None:
        """Forget all of them: the trace is read anew."""
        self.count = 0
        self.first.clear()


@dataclass(slots=True, kw_only=True)
class Trace:
    """One trace, opened. `chunks()` reads it, from its beginning each time it is called."""

    path: str
    format: Format
    block_tokens: int
    """Tokens of a block; 0 in a trace without blocks."""
    has_blocks: bool
    """False where the format holds lengths only: nothing can be said of reuse."""
    read: Callable[[Trace, bool], Iterator[tuple[TraceChunk, list[Name]]]]
    """The reader's own generator; call `chunks` or `named_chunks` instead."""
    naming: Naming = "local"
    """What the source's own names of blocks are worth outside it."""
    labels: dict[str, list[str]] = field(default_factory=dict)
    """The values of each field, in order of first appearance; grows while chunks are read."""
    problems: Problems = field(default_factory=Problems)
    caveats: tuple[str, ...] = ()
    """What this format cannot say, in sentences for a report."""

    def chunks(self) -> Iterator[TraceChunk]:
        """Every request, in order of arrival. Raises `FormatError` with file and line."""
        self.problems.clear()
        for chunk, _ in self.read(self, False):
            yield chunk

    def named_chunks(self) -> Iterator[tuple[TraceChunk, list[Name]]]:
        """As `chunks`, each with the source's own names of the blocks that appear in it first, in order.

        None stands for a block that the source does not name: the partial one behind the last full block.
        """
        self.problems.clear()
        return self.read(self, True)
