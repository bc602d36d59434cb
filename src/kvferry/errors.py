"""The whole error tree of kvferry.

Every error that a user can cause or meet is one of these, and its message names the setting, file or
line and says what to write instead.

    KvferryError
    |-- InputError                what the user gave is wrong: exit status 2
    |   |-- ConfigError           a setting: unknown key, wrong type, wrong unit
    |   |-- UsageError            a command line
    |   |-- FormatError           a file or a frame that does not parse
    |   |-- ModelError            a model that cannot be served or measured
    |   `-- MissingExtra          a part that is not installed: names the pip command
    |-- StoreError                a tier could not do its work
    |   |-- TierTimeout           its deadline passed
    |   |-- TierUnavailable       refused, reset, gone, read-only, in back-off
    |   `-- TierFull              no room, and nothing may be evicted
    `-- EngineError               an engine or a replica process failed
        `-- HandoffFailed         (handoff/wire/failed.py) a hand-off ended early; booked under its cause
"""

from __future__ import annotations

import shlex
from functools import cache

__all__ = [
    "ConfigError",
    "EngineError",
    "FormatError",
    "InputError",
    "KvferryError",
    "MissingExtra",
    "ModelError",
    "StoreError",
    "TierFull",
    "TierTimeout",
    "TierUnavailable",
    "UsageError",
    "pip_install",
]


class KvferryError(Exception):
    """Base of everything that kvferry raises on purpose."""

    exit_status = 1


class InputError(KvferryError):
    """What the user gave is wrong."""

    exit_status = 2


class ConfigError(InputError):
    """A setting is unknown, has the wrong type or the wrong unit."""


class UsageError(InputError):
    """A command line that does not make sense."""


class FormatError(InputError):
    """A file, record or frame that does not parse."""


class ModelError(InputError):
    """A model that cannot be read, served or measured."""


class MissingExtra(InputError):
    """An optional part is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: {pip_install(extra)}")
        self.extra = extra


def pip_install(*extras: str) -> str:
    """The command that adds optional parts to this installation.

    Where it was made from a folder, the command names that folder: an index may not have this version.
    """
    options, source = _origin()
    return shlex.join(["pip", "install", *options, f"{source}[{','.join(extras)}]"])


@cache
def _origin() -> tuple[tuple[str, ...], str]:
    """What pip has to be given for the package that runs now: options, and its folder or its name."""
    # Imported here: every module imports this one, and few processes ever miss a part.
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        text = metadata.distribution("kvferry").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        root = Path(__file__).resolve().parents[2]
        return (("-e",), str(root)) if (root / "pyproject.toml").is_file() else ((), "kvferry")
    if text is None:
        return (), "kvferry"
    origin = json.loads(text)
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file" or "dir_info" not in origin:
        return (), "kvferry"
    return (("-e",) if origin["dir_info"].get("editable") else ()), unquote(url.path)


class StoreError(KvferryError):
    """A tier could not do its work; the cache treats it as a miss with a cause."""


class TierTimeout(StoreError):
    """The deadline of a tier operation passed."""


class TierUnavailable(StoreError):
    """The tier cannot be reached or used now."""


class TierFull(StoreError):
    """The tier has no room, and nothing in it may be evicted."""


class EngineError(KvferryError):
    """An engine or a replica process failed."""
