"""A tier of one's own: blocks as rows of SQLite. Use it as plugin://plugin_tier/SqliteTier?path=blocks.db

What a tier must do is written in kvferry.store.tier; kvferry.testing.tiers.TierSuite checks that it does.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence

from kvferry.clock import Clock
from kvferry.store.tier import Entry, Found, Got, Kind, Put, Usage, Vector

__all__ = ["SqliteTier"]


class SqliteTier:
    name, kind = "sqlite", Kind.DISK

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._now = clock.now if clock else time.monotonic
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._run("PRAGMA synchronous = OFF")
        for table in ("blocks", "leases", "notes", "ghosts"):
            self._run(f"CREATE TABLE IF NOT EXISTS {table} (key PRIMARY KEY, value, until REAL)")

    def _run(self, sql: str, *values: object) -> sqlite3.Cursor:
        with self._lock:
            return self._db.execute(sql, values)

    def _read(self, table: str, key: bytes | str) -> bytes | None:
        sql = f"SELECT value FROM {table} WHERE key = ? AND (until IS NULL OR until > ?)"
        row = self._run(sql, key, self._now()).fetchone()
        return row[0] if row else None

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        states = (("blocks", Found.HELD), ("leases", Found.LEASED), ("ghosts", Found.GHOST))
        return bytes(
            next((state for table, state in states if self._read(table, key) is not None), Found.ABSENT)
            for key in keys
        )

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        return bytes(self._get(key, parts) for key, parts in zip(keys, into, strict=True))

    def _get(self, key: bytes, parts: Vector) -> Got:
        value = self._read("blocks", key)
        if value is None or len(value) != sum(len(part) for part in parts):
            return Got.ABSENT if value is None else Got.CORRUPT
        for part in parts:
            part[:], value = value[: len(part)], value[len(part) :]
        return Got.OK

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        until = None if ttl_seconds is None else self._now() + ttl_seconds
        return bytes(self._put(key, b"".join(parts), until) for key, parts in zip(keys, values, strict=True))

    def _put(self, key: bytes, value: bytes, until: float | None) -> Put:
        self._run("DELETE FROM blocks WHERE key = ? AND until <= ?", key, self._now())
        new = self._run("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)", key, value, until).rowcount
        self._run("INSERT OR IGNORE INTO ghosts VALUES (?, ?, NULL)", key, b"")
        return Put.STORED if new else Put.HELD

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        sql = "DELETE FROM blocks WHERE key = ? AND (until IS NULL OR until > ?)"
        return sum(self._run(sql, key, self._now()).rowcount for key in keys)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        sql = (
            "INSERT INTO leases VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
            "until = excluded.until WHERE value = excluded.value OR until <= ?"
        )
        now = self._now()
        return bytes(self._run(sql, name, holder, now + ttl_seconds, now).rowcount for name in names)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        for name in names:
            self._run("DELETE FROM leases WHERE key = ? AND value = ?", name, holder)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        return self._read("notes", name)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        verb = "IGNORE" if if_absent else "REPLACE"
        return self._run(f"INSERT OR {verb} INTO notes VALUES (?, ?, NULL)", name, value).rowcount == 1

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        names = sorted(name for (name,) in self._run("SELECT key FROM notes").fetchall())
        return [name for name in names if name.startswith(prefix)]

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        rows = self._run("SELECT key, length(value) FROM blocks").fetchall()
        return (Entry(key, size) for key, size in rows)

    def usage(self, timeout_seconds: float) -> Usage:
        blocks, used = self._run("SELECT count(*), coalesce(sum(length(value)), 0) FROM blocks").fetchone()
        return Usage(capacity_bytes=None, used_bytes=used, blocks=blocks)

    def close(self) -> None:
        self._db.close()
