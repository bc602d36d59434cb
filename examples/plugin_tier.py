"""A tier of one's own: blocks as rows of SQLite. Use it as plugin://plugin_tier/SqliteTier?path=blocks.db

`SimpleTier` makes a tier of four methods over whole values; kvferry.testing.tiers.TierSuite checks it.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

from kvferry.clock import Clock
from kvferry.errors import TierUnavailable
from kvferry.store.simple import SimpleTier
from kvferry.store.tier import Kind

__all__ = ["SqliteTier"]


class SqliteTier(SimpleTier):
    def __init__(self, path: str, clock: Clock | None = None) -> None:
        super().__init__("sqlite", Kind.DISK, clock=clock)
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._one_at_a_time = threading.Lock()
        self._run("PRAGMA synchronous = OFF")
        self._run("CREATE TABLE IF NOT EXISTS kv (name TEXT PRIMARY KEY, value BLOB)")

    def _run(self, sql: str, *values: object) -> tuple[list[Any], int]:
        try:
            with self._one_at_a_time:
                cursor = self._db.execute(sql, values)
                return cursor.fetchall(), cursor.rowcount
        except sqlite3.OperationalError as error:
            raise TierUnavailable(f"{self.name}: {error}") from error

    def read(self, name: str, limit: int | None) -> bytes | None:
        rows, _ = self._run("SELECT substr(value, 1, ?) FROM kv WHERE name = ?", limit or 1 << 30, name)
        return rows[0][0] if rows else None

    def write(self, name: str, value: bytes, *, if_absent: bool) -> bool:
        verb = "IGNORE" if if_absent else "REPLACE"
        return self._run(f"INSERT OR {verb} INTO kv VALUES (?, ?)", name, value)[1] == 1

    def delete(self, name: str) -> bool:
        return self._run("DELETE FROM kv WHERE name = ?", name)[1] == 1

    def names(self, prefix: str) -> list[tuple[str, int]]:
        return self._run("SELECT name, length(value) FROM kv WHERE name GLOB ?", prefix + "*")[0]

    def close(self) -> None:
        self._db.close()
