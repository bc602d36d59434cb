"""Where things lie in the directory of a files tier.

    format                 "kvferry files 1"
    account                the lock of the directory, and what is used (`account`)
    ghosts                 filter of evicted keys, mapped by every process (`..bloom`)
    blocks/<ab>/<key hex>  one file a value; its times are its use and its life (`stamp`)
    tmp/                   values and notes being written
    leases/<name hex>      content is the holder, mtime the expiry
    notes/<quoted name>    small documents

Owns names and their making; refuses to know what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from ...errors import ConfigError

__all__ = ["Layout"]

_FORMAT = "kvferry files 1\n"
_IS_KEY = re.compile("(?:[0-9a-f]{2})+").fullmatch


class Layout:
    """Paths under `root`; making it creates what is missing, or refuses a directory that is no tier yet."""

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root
        self._blocks = str(root / "blocks")
        self.account = root / "account"
        self.ghosts = root / "ghosts"
        self.tmp = str(root / "tmp")
        self.leases = str(root / "leases")
        self._notes = str(root / "notes")
        try:
            if not create and not (root / "format").exists():
                raise ConfigError(f"there is no files tier in {root}; give the directory of one")
            self._create()
        except OSError as error:
            raise ConfigError(
                f"{root} cannot be used as a files tier: {error.strerror}; "
                "give a directory that can be written"
            ) from error

    def block(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._blocks}/{name[:2]}/{name}"

    def lease(self, name: bytes) -> str:
        return f"{self.leases}/{name.hex()}"

    def note(self, name: str) -> str:
        # A dot would hide the note, or leave the folder.
        return f"{self._notes}/{quote(name, safe='').replace('.', '%2E')}"

    def note_names(self) -> list[str]:
        return [unquote(name) for name in os.listdir(self._notes)]

    def blocks(self) -> Iterator[os.DirEntry[str]]:
        """Every file that has a block's name; what else lies there (.nfs000..., .DS_Store) is not ours."""
        for folder in os.listdir(self._blocks):
            try:
                entries = os.scandir(f"{self._blocks}/{folder}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                yield from (entry for entry in entries if _IS_KEY(entry.name))

    def check_links(self) -> None:
        """Publishing needs hard links; raises `ConfigError` where there are none. The lock is held."""
        first, second = f"{self.tmp}/n-{os.getpid()}-a", f"{self.tmp}/n-{os.getpid()}-b"
        try:
            with open(first, "wb"):
                os.link(first, second)
        except OSError as error:
            raise ConfigError(
                f"{self.root}: the file system has no hard links ({error.strerror}); "
                "give a directory on another one"
            ) from error
        finally:
            for path in (first, second):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _create(self) -> None:
        marker = self.root / "format"
        if marker.exists():
            found = marker.read_text(errors="replace")
            if found != _FORMAT:
                raise ConfigError(
                    f"{self.root} holds {found.strip()!r}, this release reads {_FORMAT.strip()!r}; "
                    "give another directory"
                )
        for folder in (self._blocks, self.tmp, self.leases, self._notes):
            os.makedirs(folder, exist_ok=True)
        if not marker.exists():
            # Processes that open a new directory at once all write the same words.
            fresh = marker.with_name(f"format.{os.getpid()}")
            fresh.write_text(_FORMAT)
            os.replace(fresh, marker)
