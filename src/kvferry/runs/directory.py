"""A run directory: everything one command did, in files that a person or a program reads later.

    run.json         command, settings with their origins, seed, versions, machine, what was held equal
    decisions.jsonl  one record per request: facts, decision, outcome
    requests.jsonl   one record per request as its client saw it
    summary.json     the figures; there only when the run came to its end

Owns the folder's layout. run.json is written first and summary.json last, each whole or not at all, so that
a killed run is recognisable. Refuses to know what a decision or a figure means.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from ..clock import Clock, MonotonicClock
from ..config import DEFAULT, Config, Origin, public_command, public_values
from ..errors import FormatError, KvferryError, UsageError
from .lines import LineWriter, read_lines
from .machine import Machine, describe_machine, versions

__all__ = ["RunDirectory", "RunHeader", "Setting"]

_T = TypeVar("_T")
FORMAT_VERSION = 1


class Setting(msgspec.Struct, frozen=True):
    """One setting of the run; secrets are masked."""

    value: Any
    origin: str


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """run.json."""

    format_version: int
    command: list[str]
    started: str
    """UTC, ISO 8601."""
    seed: int | None
    config: dict[str, Setting]
    versions: dict[str, str]
    machine: Machine
    equal: dict[str, Any]
    """What every arm of an experiment has to share: model, revision, dtype, KV budget, workload."""


class RunDirectory:
    """One run's folder. Make it with `create`, read it with `open`."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        self.header = header
        self._writers: dict[str, LineWriter] = {}
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        command: Sequence[str],
        config: Config,
        origins: Mapping[str, Origin],
        seed: int | None = None,
        equal: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> RunDirectory:
        """Begin a run in a folder that holds none yet. Raises `UsageError` when it does."""
        folder = Path(path)
        if (folder / "run.json").exists():
            raise UsageError(f"{folder} already holds a run; choose another folder or remove it")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot make this folder: {error.strerror}") from error
        wall = (clock or MonotonicClock()).wall()
        header = RunHeader(
            format_version=FORMAT_VERSION,
            command=public_command(command),
            started=datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds"),
            seed=seed,
            config=_settings(config, origins),
            versions=versions(),
            machine=describe_machine(),
            equal=dict(equal or {}),
        )
        _write_whole(folder / "run.json", header)
        return cls(folder, header)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """An existing run. Raises `UsageError` when there is none, `FormatError` when it does not parse."""
        folder = Path(path)
        if not folder.exists():
            raise UsageError(f"{folder}: there is no such folder")
        if not (folder / "run.json").is_file():
            raise UsageError(f"{folder} is not a run directory: it has no run.json")
        header = _read_whole(folder / "run.json", RunHeader)
        if header.format_version != FORMAT_VERSION:
            raise FormatError(
                f"{folder / 'run.json'}: format_version {header.format_version} is not {FORMAT_VERSION}; "
                f"read it with the kvferry that wrote it ({header.versions.get('kvferry', 'unknown')})"
            )
        return cls(folder, header)

    def append_decision(self, record: Any) -> None:
        """Add a record to decisions.jsonl; any thread may call it."""
        self._writer("decisions").append(record)

    def append_request(self, record: Any) -> None:
        """Add a record to requests.jsonl; any thread may call it."""
        self._writer("requests").append(record)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, whole; figures that are not finite become null."""
        _write_whole(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any]:
        """Read summary.json. Raises `UsageError` when the run never came to its end."""
        if not (self.path / "summary.json").is_file():
            raise UsageError(f"{self.path} has no summary.json: the run did not come to its end")
        return _read_whole(self.path / "summary.json", dict)

    def decisions(self, record: Any = dict, *, skipped: Callable[[str], None] | None = None) -> Iterator[Any]:
        """Every record of decisions.jsonl, decoded as `record`.

        Raises `FormatError` with file and line for one that does not parse; with `skipped`, that hears of it.
        """
        return read_lines(self.path / "decisions.jsonl", record, skipped=skipped)

    def requests(self, record: Any = dict, *, skipped: Callable[[str], None] | None = None) -> Iterator[Any]:
        """Every record of requests.jsonl, decoded as `record`. Raises and skips as `decisions` does."""
        return read_lines(self.path / "requests.jsonl", record, skipped=skipped)

    def close(self) -> None:
        """Close what is open for writing. Calling it twice is fine."""
        for writer in self._writers.values():
            writer.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writer(self, name: str) -> LineWriter:
        with self._lock:
            if name not in self._writers:
                self._writers[name] = LineWriter(self.path / f"{name}.jsonl")
            return self._writers[name]


def _settings(config: Config, origins: Mapping[str, Origin]) -> dict[str, Setting]:
    return {
        # A list, as JSON gives it back: runs are compared before and after they were written.
        name: Setting(list(value) if isinstance(value, tuple) else value, str(origins.get(name, DEFAULT)))
        for name, value in public_values(config).items()
    }


def _write_whole(path: Path, document: Any) -> None:
    """Replace the file in one step: a reader sees the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise KvferryError(f"{path}: cannot write here: {error.strerror}") from error


def _read_whole(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise FormatError(f"{path}: cannot read this file: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error
