"""The header of a GGUF file: metadata and the shapes of tensors, without the tensors.

Owns the format (version 2 and 3, little-endian; the specification is ggml's docs/gguf.md). Long arrays,
such as a vocabulary, are skipped and not kept. Knows nothing of what a key means (`gguf_config`).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..errors import ModelError

__all__ = ["MAGIC", "GgufHeader", "read_header"]

MAGIC = b"GGUF"
_LONGEST_ARRAY = 4096
_LONGEST_TEXT = 1 << 26
_MOST_ENTRIES = 1 << 24
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _ARRAY = 8, 9


class GgufHeader(msgspec.Struct, frozen=True):
    """What stands in front of the tensors."""

    metadata: dict[str, Any]
    """By key; arrays longer than a few thousand entries are left out."""
    tensors: dict[str, tuple[int, ...]]
    """Shape by name."""


def read_header(path: Path) -> GgufHeader:
    """The header of a file. Raises `ModelError` where it is no GGUF file or is cut short."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path

    def header(self) -> GgufHeader:
        if self._file.read(4) != MAGIC:
            raise ModelError(f"{self._path}: not a GGUF file")
        version = self._number(4)
        if version not in (2, 3):
            raise ModelError(f"{self._path}: GGUF version {version}; 2 and 3 are read")
        tensors, entries = self._count(), self._count()
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            value = self._value(self._number(4))
            if value is not None:
                metadata[key] = value
        shapes = {}
        for _ in range(tensors):
            name = self._text()
            dimensions = self._number(4)
            if dimensions > 8:
                raise self._broken()
            shapes[name] = tuple(self._number(10) for _ in range(dimensions))
            self._skip(12)
        return GgufHeader(metadata, shapes)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        return self._number(kind)

    def _array(self) -> list[Any] | None:
        kind, count = self._number(4), self._count()
        if count <= _LONGEST_ARRAY:
            return [self._value(kind) for _ in range(count)]
        if kind in _NUMBERS:
            self._skip(count * struct.calcsize(_NUMBERS[kind]))
        else:
            for _ in range(count):
                self._value(kind) if kind == _ARRAY else self._skip(self._length())
        return None

    def _number(self, kind: int) -> Any:
        form = _NUMBERS.get(kind)
        if form is None:
            raise self._broken()
        size = struct.calcsize(form)
        data = self._file.read(size)
        if len(data) != size:
            raise self._broken()
        (value,) = struct.unpack(form, data)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def _count(self) -> int:
        count = int(self._number(10))
        if count > _MOST_ENTRIES:
            raise self._broken()
        return count

    def _length(self) -> int:
        length = int(self._number(10))
        if length > _LONGEST_TEXT:
            raise self._broken()
        return length

    def _text(self) -> str:
        length = self._length()
        data = self._file.read(length)
        if len(data) != length:
            raise self._broken()
        return data.decode("utf-8", errors="replace")

    def _skip(self, size: int) -> None:
        self._file.seek(size, 1)

    def _broken(self) -> ModelError:
        return ModelError(
            f"{self._path}: its GGUF header is damaged or cut short at byte {self._file.tell()}"
        )
