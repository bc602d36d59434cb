"""How much memory there is here, and how much of it is in use: control groups, the machine, a setting.

Owns the reading of these figures; refuses to know what is done about them. Memory that the kernel would
give up by itself (inactive file cache) does not count as used.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...units import format_bytes

__all__ = ["ReadRoom", "Room", "machine_room", "process_room"]

_UNLIMITED = 1 << 60
"""Control groups of version 1 write "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Room:
    """A limit on memory, and what is used of it."""

    limit_bytes: int
    used_bytes: int
    source: str
    """Whose limit it is, for messages."""

    def __str__(self) -> str:
        return f"{format_bytes(self.used_bytes)} of {format_bytes(self.limit_bytes)} used by {self.source}"

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


ReadRoom = Callable[[], Room | None]
"""Reads the tightest limit that holds for this process; None when none is known."""


def machine_room(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Room | None:
    """The tightest of the limits of this process's control groups and of the machine itself."""
    rooms = [*_cgroup_rooms(proc, cgroups), *_whole_machine(proc)]
    return min(rooms, key=lambda room: room.free_bytes, default=None)


def process_room(limit_bytes: int, proc: Path = Path("/proc")) -> ReadRoom:
    """A reader for a limit that a setting puts on the resident memory of this process."""

    def read() -> Room | None:
        text = _text(proc / "self" / "statm")
        if text is None:
            return None
        return Room(limit_bytes, int(text.split()[1]) * mmap.PAGESIZE, "this process")

    return read


def _cgroup_rooms(proc: Path, cgroups: Path) -> Iterator[Room]:
    for line in (_text(proc / "self" / "cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _upwards(cgroups / "memory", path, *names)
        elif number == "0":
            yield from _upwards(cgroups, path, "memory.max", "memory.current", "inactive_file")


def _upwards(root: Path, path: str, limit_name: str, used_name: str, cache_name: str) -> Iterator[Room]:
    """The limits of a group and of all above it; in a container its path may lie outside what is mounted."""
    folder = root / path.strip("/")
    if not folder.is_dir():
        folder = root
    while True:
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is not None and used is not None and limit < _UNLIMITED:
            cache = _field(folder / "memory.stat", cache_name)
            yield Room(limit, max(0, used - cache), f"control group {folder}")
        if folder == root:
            return
        folder = folder.parent


def _whole_machine(proc: Path) -> Iterator[Room]:
    total = _field(proc / "meminfo", "MemTotal:") * 1024
    if total:
        yield Room(total, total - _field(proc / "meminfo", "MemAvailable:") * 1024, "this machine")


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isdigit() else None


def _field(path: Path, name: str) -> int:
    """The number behind a name in a file of lines; 0 where there is none."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return 0
