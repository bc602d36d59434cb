"""Files of one JSON record a line: appended whole, read with the line's number in every error.

Owns appending and reading. A record goes to the file in one write, so that threads and processes may
append to the same file and a killed one leaves at most a half-written last line. Refuses to know what a
record means.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from ..errors import FormatError, KvferryError

__all__ = ["LineWriter", "read_lines"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_CHUNK = 1 << 16


class LineWriter:
    """Appends records to a file; whoever opens it after a crash cuts off the half-written line first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _cut_half_line(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise KvferryError(f"{path}: cannot write here: {error.strerror}") from error
        self._open = True

    def append(self, record: Any) -> None:
        """Write one record (anything msgspec can encode); it is in the file when this returns."""
        line = memoryview(msgspec.json.encode(record) + b"\n")
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise KvferryError(f"{self.path}: cannot write here: {error.strerror}") from error

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        if self._open:
            self._open = False
            os.close(self._file)

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_lines(path: Path, record: type[_T], *, skipped: Callable[[str], None] | None = None) -> Iterator[_T]:
    """Every record of the file, decoded as `record` (`dict` for raw rows).

    A last line that was never finished is skipped with a warning that names it: its writer was killed, or is
    still at work. Any other line that does not parse raises `FormatError` with file and line; with `skipped`,
    that hears the same words, and the line is left out.
    """
    decoder = msgspec.json.Decoder(record)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not line.endswith(b"\n"):
                        _log.warning("%s:%d: the last line was never finished; skipped", path, number)
                        return
                    if skipped is None:
                        raise FormatError(f"{path}:{number}: {error}") from error
                    skipped(f"{path}:{number}: {error}")
    except FileNotFoundError as error:
        raise FormatError(f"{path}: no such file; is its folder a run directory?") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot read this file: {error.strerror}") from error


def _cut_half_line(path: Path) -> None:
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _CHUNK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            _log.warning("%s: cut off %d bytes of a record that was never finished", path, size - end)
            file.truncate(end)
