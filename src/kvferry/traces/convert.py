"""Writing a trace: in kvferry's own format or Mooncake's, as it is or under keyed hashes.

Owns what may be carried over, and that a file under its name is whole. Keyed names go along; numbers and
hashes that a guess at the prompt could make do not leave their file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from ..errors import ConfigError, FormatError, KvferryError, UsageError
from .chunk import Name, Naming, Trace, TraceChunk
from .lines import LineWriter
from .own import TraceWriter

__all__ = ["Written", "anonymize", "new_secret", "read_secret", "write_mooncake", "write_own"]

_PERSON = b"kvferry-anonym-1"
_KEY_BYTES = 16
_SHORTEST_SECRET = 16


class Written(msgspec.Struct, kw_only=True):
    """What a writer has written."""

    path: str
    requests: int = 0
    input_tokens: int = 0
    block_references: int = 0
    unique_blocks: int = 0
    bad_rows: int = 0
    """Left out."""

    def add(self, chunk: TraceChunk) -> None:
        """Count a chunk."""
        self.requests += len(chunk)
        self.input_tokens += int(chunk.input_tokens.sum())
        self.block_references += len(chunk.blocks)
        if len(chunk.blocks):
            self.unique_blocks = max(self.unique_blocks, int(chunk.blocks.max()) + 1)


def write_own(
    trace: Trace, path: Path, *, recipe: dict[str, object] | None = None, overwrite: bool = False
) -> Written:
    """Write a trace in kvferry's own format; keys go along where the source's are keyed."""
    source = "synthetic" if recipe is not None else trace.format
    return _write(trace, trace.named_chunks(), path, trace.naming, source, recipe, overwrite)


def anonymize(
    trace: Trace, path: Path, secret: bytes, *, keep: Collection[str] = (), overwrite: bool = False
) -> Written:
    """Write a trace under new names: lengths, arrivals and boundaries stay, fields go unless in `keep`.

    A block's key is BLAKE2b(secret, the source's name of it), 16 bytes. Two traces under one secret can be
    joined where the source's names are hashes of prompts; numbers that mean something inside one file only
    are salted, and cannot. Raises `UsageError` for a field to keep that the trace lacks.
    """
    salt = os.urandom(16)
    begun = hashlib.blake2b(key=secret, digest_size=_KEY_BYTES, person=_PERSON)

    def key(name: Name) -> Name:
        if name is None:
            return None
        hasher = begun.copy()
        hasher.update(_material(name, salt))
        return hasher.digest()

    def renamed() -> Iterator[tuple[TraceChunk, list[Name]]]:
        for chunk, names in trace.named_chunks():
            fields = {name: column for name, column in chunk.fields.items() if name in keep}
            yield replace(chunk, fields=fields), [key(name) for name in names]
        missing = sorted(set(keep) - trace.labels.keys())
        if missing:
            known = ", ".join(trace.labels) or "none"
            raise UsageError(f"--keep: no request has the field {missing[0]!r}; this trace's fields: {known}")

    return _write(trace, renamed(), path, "keyed", trace.format, None, overwrite)


def write_mooncake(trace: Trace, path: Path, *, overwrite: bool = False) -> Written:
    """Write a trace as Mooncake's JSONL: whole milliseconds, lengths, ids. Fields and boundaries are lost.

    Raises `FormatError` for a trace without blocks.
    """
    if not trace.has_blocks:
        raise FormatError(f"{trace.path}: a trace of lengths only has no hash_ids; convert it --to kvferry")
    written = Written(path=str(path))
    with _draft(path, overwrite) as draft, LineWriter(draft) as writer:
        for chunk in trace.chunks():
            blocks, offsets = chunk.blocks.tolist(), chunk.offsets.tolist()
            for row, (seconds, tokens, output) in enumerate(
                zip(
                    chunk.arrival_seconds.tolist(),
                    chunk.input_tokens.tolist(),
                    chunk.output_tokens.tolist(),
                    strict=True,
                )
            ):
                writer.append(
                    {
                        "timestamp": round(seconds * 1000),
                        "input_length": tokens,
                        "output_length": output,
                        "hash_ids": blocks[offsets[row] : offsets[row + 1]],
                    }
                )
            written.add(chunk)
        _not_empty(trace, written)
    return written


def read_secret(path: Path) -> bytes:
    """A secret of 32 bytes from a file of at least 16; one line break at its end is not part of it."""
    try:
        content = path.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise ConfigError(f"--secret-file: cannot read {path}: {error.strerror}") from error
    if len(content) < _SHORTEST_SECRET:
        raise ConfigError(
            f"--secret-file: {path} has {len(content)} bytes; write at least {_SHORTEST_SECRET} random ones"
        )
    return hashlib.blake2b(content, digest_size=32).digest()


def new_secret() -> bytes:
    """A secret that nobody will know: for keys that are to be joined with no others."""
    return os.urandom(32)


def _write(
    trace: Trace,
    chunks: Iterator[tuple[TraceChunk, list[Name]]],
    path: Path,
    naming: Naming,
    source: str,
    recipe: dict[str, object] | None,
    overwrite: bool,
) -> Written:
    written = Written(path=str(path))
    with (
        _draft(path, overwrite) as draft,
        TraceWriter(draft, trace.block_tokens, naming=naming, source=source, recipe=recipe) as writer,
    ):
        for chunk, names in chunks:
            writer.write(chunk, names, trace.labels)
            written.add(chunk)
        _not_empty(trace, written)
    return written


def _not_empty(trace: Trace, written: Written) -> None:
    """Book the bad rows. A file in which no row is a good one is no trace: raises `FormatError`."""
    written.bad_rows = trace.problems.count
    if written.bad_rows and not written.requests:
        raise FormatError(f"{trace.path}: no row of it can be used: {trace.problems.first[0]}")


@contextmanager
def _draft(path: Path, overwrite: bool) -> Iterator[Path]:
    """A file beside `path` that gets its name once it is whole, and goes where it is not."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; name another file, or say --overwrite")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise KvferryError(f"{path}: cannot write here: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _material(name: Name, salt: bytes) -> bytes:
    """A source's name as bytes; the first byte keeps kinds apart."""
    if isinstance(name, str):
        return b"s" + name.encode()
    if isinstance(name, bytes):
        return b"b" + name
    return b"n" + salt + repr(name).encode()
