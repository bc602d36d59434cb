"""A trace from requests in memory: for tests, examples and synthesis.

Owns `Request` and `from_requests`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .assemble import assemble
from .chunk import Name, Trace, TraceChunk
from .row import Row

__all__ = ["Request", "from_requests"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `blocks` are names of whole prefixes (any hashable), one a block or a full block."""

    arrival_seconds: float
    input_tokens: int
    output_tokens: int = 0
    blocks: Sequence[Hashable] = ()
    boundary_tokens: int = -1
    fields: Mapping[str, str] = field(default_factory=dict)


def from_requests(
    requests: Sequence[Request], block_tokens: int, *, has_blocks: bool = True, name: str = "<memory>"
) -> Trace:
    """A trace of these requests, put in order of arrival. A bad one raises `FormatError` with its number."""

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        rows = (
            Row(
                arrival=request.arrival_seconds,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                names=request.blocks,
                path=name,
                line=number,
                boundary=request.boundary_tokens,
                fields=dict(request.fields) or None,
            )
            for number, request in enumerate(requests, start=1)
        )
        return assemble(trace, rows, sort=True, named=named)

    trace = Trace(path=name, format="kvferry", block_tokens=block_tokens, has_blocks=has_blocks, read=read)
    trace.problems.strict = True
    return trace
