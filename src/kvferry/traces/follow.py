"""Recording while replicas serve: the decision records of one or several files, as they are written.

Owns reading at the end of growing files and the file of keyed hashes and lengths that comes of it. Requests
are written in the order in which they ended, which readers put right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from .. import __version__
from ..errors import FormatError
from .chunk import Problems
from .decisions import AskedRecord, row_of
from .lines import LineWriter
from .own.records import TRACE_VERSION, Header, Line
from .row import Row, flaw

__all__ = ["Tail", "follow_decisions"]

_log = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_DECODER = msgspec.json.Decoder(AskedRecord)


class Tail:
    """The whole lines that a file has gained since the last look. It need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._lines = 0

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line) of each new whole line. A file that has shrunk is read from its beginning."""
        try:
            size = self.path.stat().st_size
            if size < self._offset:
                _log.warning("%s became shorter; read from its beginning", self.path)
                self._offset, self._rest, self._lines = 0, b"", 0
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while block := file.read(_READ_BYTES):
                    self._offset += len(block)
                    *whole, self._rest = (self._rest + block).split(b"\n")
                    for line in whole:
                        self._lines += 1
                        if line.strip():
                            yield self._lines, line
        except FileNotFoundError:
            return
        except OSError as error:
            raise FormatError(f"{self.path}: cannot read this file: {error.strerror}") from error


def follow_decisions(
    sources: Sequence[Path],
    path: Path,
    stop: Callable[[], bool],
    *,
    problems: Problems,
    poll_seconds: float = 0.5,
    overwrite: bool = False,
) -> int:
    """Record until `stop()` says so, what is there already included; how many requests were written."""
    tails = [Tail(source) for source in sources]
    written = 0
    with LineWriter(path, overwrite=overwrite) as writer:
        recorder: _Recorder | None = None
        while True:
            # Asked before the last look, so that what was written before the stop is in.
            ending = stop()
            for tail in tails:
                for number, text in tail.lines():
                    record = _decoded(tail.path, number, text, problems)
                    if record is None:
                        continue
                    if recorder is None:
                        recorder = _Recorder(writer, record)
                    row = row_of(record, recorder.block_tokens, str(tail.path), number, problems)
                    wrong = None if row is None else flaw(row, recorder.block_tokens, True)
                    if wrong is not None:
                        problems.add(str(tail.path), number, wrong)
                    elif row is not None:
                        recorder.add(row)
                        written += 1
            writer.flush()
            if ending:
                return written
            time.sleep(poll_seconds)


def _decoded(path: Path, number: int, text: bytes, problems: Problems) -> AskedRecord | None:
    try:
        record = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problems.add(str(path), number, str(error))
        return None
    if record.block_tokens < 1:
        problems.add(str(path), number, f"blocks of {record.block_tokens} tokens")
        return None
    return record


class _Recorder:
    """Numbers for keys in order of first appearance, and lines of the trace format."""

    def __init__(self, writer: LineWriter, first: AskedRecord) -> None:
        self._writer = writer
        self.block_tokens = first.block_tokens
        self._began = first.arrival
        self._numbers: dict[str, int] = {}
        self._next = 0
        writer.append(
            Header(
                version=TRACE_VERSION,
                block_tokens=first.block_tokens,
                names="keyed",
                source="decisions",
                began=first.arrival,
                kvferry=__version__,
            )
        )

    def add(self, row: Row) -> None:
        """Write one request."""
        ids: list[int] = []
        keys: list[str | None] = []
        for key in row.names:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = self._take()
                keys.append(key)
            _extend(ids, number)
        if row.input_tokens % self.block_tokens:
            _extend(ids, self._take())
            keys.append(None)
        line = Line(
            row.arrival - self._began, row.input_tokens, row.output_tokens, ids, keys, fields=row.fields
        )
        self._writer.append(line)

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


def _extend(runs: list[int], number: int) -> None:
    if runs and runs[-2] + runs[-1] == number:
        runs[-1] += 1
    else:
        runs += (number, 1)
