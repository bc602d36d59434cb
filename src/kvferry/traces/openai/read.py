"""A request log as a trace: prompts become tokens, tokens become block hashes, and nothing else is kept.

Without a tokenizer, and without token ids in the log, only usage can be read: lengths, no blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from ...errors import FormatError, InputError
from ...keys import block_hashes
from ..assemble import assemble
from ..chunk import Name, Problems, Trace, TraceChunk
from ..row import Row
from .records import LoggedRequest, read_requests
from .tokens import Tokens

__all__ = ["BLOCK_TOKENS", "open_openai"]

BLOCK_TOKENS = 16
"""Where none is asked for: what vLLM uses on GPUs."""

_AT_ONCE = 64
_LENGTHS_ONLY = (
    "usage only: hits, reuse distances, misses and classes cannot be computed; with the prompts in the log "
    "and --tokenizer they can"
)


def open_openai(
    path: Path, trace: Trace, block_tokens: int | None, sort: bool, tokens: Tokens | None
) -> None:
    """Set up a trace that reads this log."""
    sample = _first(path)
    with_ids = isinstance(sample.prompt, list)
    has_text = sample.messages is not None or sample.prompt is not None
    timed = sample.arrival is not None
    trace.has_blocks = with_ids or (has_text and tokens is not None)
    if not trace.has_blocks and sample.prompt_tokens is None:
        raise FormatError(
            f"{path}: a log of prompts needs the tokenizer that made tokens of them; say --tokenizer FOLDER"
        )
    trace.block_tokens = (block_tokens or BLOCK_TOKENS) if trace.has_blocks else 0
    trace.naming = "plain"
    standing = () if trace.has_blocks else (_LENGTHS_ONLY,)
    if not timed:
        standing = (*standing, "the log has no times: requests count as one second apart")

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        trace.caveats = standing
        if trace.has_blocks:
            rows = _rows(path, trace, tokens, timed, standing)
        else:
            rows = _lengths(path, trace.problems, timed)
        return assemble(trace, rows, sort=sort, named=named)

    trace.caveats = standing
    trace.read = read


def _rows(
    path: Path, trace: Trace, tokens: Tokens | None, timed: bool, standing: tuple[str, ...]
) -> Iterator[Row]:
    batch: list[tuple[LoggedRequest, str | list[int]]] = []
    disagreement = _Disagreement()
    for request in _timed(path, trace.problems, timed):
        try:
            if tokens is not None:
                text = tokens.text(request)
            elif isinstance(request.prompt, list):
                text = request.prompt
            else:
                raise ValueError("no token ids: its blocks are unknown without --tokenizer")
        except ValueError as error:
            trace.problems.add(str(path), request.line, str(error))
            continue
        batch.append((request, text))
        if len(batch) == _AT_ONCE:
            yield from _hashed(path, trace, tokens, batch, disagreement)
            batch = []
    yield from _hashed(path, trace, tokens, batch, disagreement)
    trace.caveats = (*standing, *disagreement.sentences())


def _hashed(
    path: Path,
    trace: Trace,
    tokens: Tokens | None,
    batch: list[tuple[LoggedRequest, str | list[int]]],
    disagreement: _Disagreement,
) -> Iterator[Row]:
    texts = [text for _, text in batch]
    chats = [request.messages is not None for request, _ in batch]
    if tokens is None:
        ids = [text for text in texts if isinstance(text, list)]
    else:
        ids = tokens.ids(texts, chats=chats)
    for (request, _), one in zip(batch, ids, strict=True):
        disagreement.note(request, len(one))
        try:
            names = block_hashes(one, trace.block_tokens, salt=request.cache_salt)
        except InputError as error:
            trace.problems.add(str(path), request.line, str(error))
            continue
        yield _row(path, request, len(one), names)


def _lengths(path: Path, problems: Problems, timed: bool) -> Iterator[Row]:
    for request in _timed(path, problems, timed):
        if request.prompt_tokens is None:
            problems.add(str(path), request.line, "no usage.prompt_tokens: its length is unknown")
            continue
        yield _row(path, request, request.prompt_tokens, [])


def _row(path: Path, request: LoggedRequest, tokens: int, names: list[bytes]) -> Row:
    return Row(
        request.arrival or 0.0,
        tokens,
        request.completion_tokens,
        names,
        str(path),
        request.line,
        boundary=request.boundary_tokens,
        fields=request.fields or None,
    )


def _timed(path: Path, problems: Problems, timed: bool) -> Iterator[LoggedRequest]:
    """The requests, all with a time; in a log without times, a second a line."""
    for request in read_requests(path, problems):
        if not timed:
            yield replace(request, arrival=float(request.line))
        elif request.arrival is None:
            problems.add(str(path), request.line, "no time, where the log's first request has one")
        else:
            yield request


def _first(path: Path) -> LoggedRequest:
    for request in read_requests(path, Problems()):
        return request
    raise FormatError(f"{path}: no request can be read here")


class _Disagreement:
    """Where usage and the tokenizer count differently: another template or tokenizer made the tokens."""

    def __init__(self) -> None:
        self._compared = 0
        self._differing = 0
        self._first = ""

    def note(self, request: LoggedRequest, tokens: int) -> None:
        """Compare one request's two counts."""
        if request.prompt_tokens is None:
            return
        self._compared += 1
        if request.prompt_tokens != tokens:
            self._differing += 1
            self._first = self._first or (
                f"line {request.line} has {request.prompt_tokens} tokens by its usage and {tokens} here"
            )

    def sentences(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if not self._differing:
            return ()
        return (
            f"usage and tokenizer disagree in {self._differing} of {self._compared} requests ({self._first}):"
            " the engine has another tokenizer or chat template",
        )
