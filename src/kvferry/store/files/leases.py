"""Leases and notes as small files.

Owns their reading and writing. Both are written under the directory's lock and appear whole, by a rename.
"""

from __future__ import annotations

import os
from itertools import count

from .layout import Layout

__all__ = ["SmallFiles"]


class SmallFiles:
    """Leases and notes in the folders of a `Layout`; the caller holds the lock to write."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._serial = count()

    def holder_of(self, name: bytes, now_ns: int) -> bytes | None:
        """Who has the lease now."""
        path = self._layout.lease(name)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_mtime_ns <= now_ns:
                    return None
                return file.read()
        except FileNotFoundError:
            return None

    def leased(self, now_ns: int) -> set[str]:
        """Hex names of all live leases; cheap, since few are live at once."""
        live = set()
        with os.scandir(self._layout.leases) as entries:
            for entry in entries:
                try:
                    if entry.stat().st_mtime_ns > now_ns:
                        live.add(entry.name)
                except FileNotFoundError:
                    continue
        return live

    def take_lease(self, name: bytes, holder: bytes, until_ns: int) -> None:
        """Write the lease, whoever had it."""
        self._write(self._layout.lease(name), holder, until_ns)

    def end_lease(self, name: bytes) -> None:
        """Remove the lease if it is there."""
        try:
            os.unlink(self._layout.lease(name))
        except FileNotFoundError:
            return

    def clear_expired(self, now_ns: int) -> None:
        """Remove leases whose holders are gone."""
        with os.scandir(self._layout.leases) as entries:
            for entry in entries:
                if entry.is_file() and entry.stat().st_mtime_ns <= now_ns:
                    os.unlink(entry.path)

    def read_note(self, name: str) -> bytes | None:
        try:
            with open(self._layout.note(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write_note(self, name: str, value: bytes, *, if_absent: bool) -> bool:
        path = self._layout.note(name)
        if if_absent and os.path.exists(path):
            return False
        self._write(path, value, None)
        return True

    def _write(self, path: str, content: bytes, mtime_ns: int | None) -> None:
        fresh = f"{self._layout.tmp}/n-{os.getpid()}-{next(self._serial)}"
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            if mtime_ns is not None:
                os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
        os.replace(fresh, path)
