"""Files of lines: read to the last whole one, appended to so that a killed writer leaves a readable file.

Owns opening (gzip is recognised by content), line numbers and decoding; knows no format.
"""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar, cast

import msgspec

from ..errors import FormatError, KvferryError, UsageError
from .chunk import Problems

__all__ = ["LineWriter", "open_binary", "read_lines", "read_records"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_GZIP = b"\x1f\x8b"
_FLUSH_BYTES = 1 << 18


def open_binary(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where it is gzipped. Raises `FormatError` when it cannot be read."""
    try:
        file = path.open("rb", buffering=1 << 20)
        packed = file.read(2) == _GZIP
        file.seek(0)
        if packed:
            return cast("IO[bytes]", gzip.open(file))
    except OSError as error:
        raise FormatError(f"{path}: cannot read this file: {error.strerror}") from error
    return file


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line with its end) of every line that is not blank."""
    with open_binary(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield number, line
        except (OSError, EOFError) as error:
            raise FormatError(f"{path}: cannot read this file to its end: {error}") from error


def read_records(
    path: Path, decoder: msgspec.json.Decoder[_T], problems: Problems
) -> Iterator[tuple[int, _T]]:
    """(line number, record) of every line that decodes; the others are booked as problems.

    A last line without an end that does not decode is left out: its writer is still at work, or was killed.
    """
    decode = decoder.decode
    for number, line in read_lines(path):
        try:
            yield number, decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not line.endswith(b"\n"):
                _log.info("%s:%d: the last line is not finished; left out", path, number)
                return
            problems.add(str(path), number, str(error))


class LineWriter:
    """Writes JSON records, one a line, into a new file; what was flushed is whole lines.

    Raises `UsageError` when the file exists: a trace is never overwritten by accident.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        mode = (
            os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND | (os.O_TRUNC if overwrite else os.O_EXCL)
        )
        try:
            self._file = os.open(path, mode, 0o644)
        except FileExistsError as error:
            raise UsageError(f"{path} exists; name another file, or say --overwrite") from error
        except OSError as error:
            raise KvferryError(f"{path}: cannot write here: {error.strerror}") from error
        self._encoder = msgspec.json.Encoder()
        self._held = bytearray()
        self._open = True

    def append(self, record: Any) -> None:
        """Add one record (anything msgspec encodes)."""
        self._held += self._encoder.encode(record)
        self._held += b"\n"
        if len(self._held) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system: a reader sees it from now on, whatever happens to this process."""
        rest = memoryview(bytes(self._held))
        self._held.clear()
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise KvferryError(f"{self.path}: cannot write here: {error.strerror}") from error

    def close(self) -> None:
        """Flush and close. Calling it twice is fine."""
        if self._open:
            self._open = False
            try:
                self.flush()
            finally:
                os.close(self._file)

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
