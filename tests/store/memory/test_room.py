"""The limits of control groups of both versions, of the machine and of a setting, from files as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvferry.store.memory.room import Room, machine_room, process_room

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc", {"meminfo": "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n"})
    return tmp_path / "proc"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_a_group_of_version_two(proc: Path, groups: Path) -> None:
    write(proc, {"self/cgroup": "0::/a/b\n"})
    write(
        groups,
        {
            "a/b/memory.max": f"{2 * GIB}\n",
            "a/b/memory.current": f"{GIB}\n",
            "a/b/memory.stat": f"anon 1\ninactive_file {GIB // 2}\nactive_file 7\n",
            "a/memory.max": "max\n",
            "a/memory.current": "5\n",
        },
    )
    room = machine_room(proc, groups)
    assert room == Room(2 * GIB, GIB // 2, f"control group {groups / 'a/b'}")


def test_the_tightest_of_the_groups_above_counts(proc: Path, groups: Path) -> None:
    write(proc, {"self/cgroup": "0::/a/b\n"})
    write(
        groups,
        {
            "a/b/memory.max": f"{4 * GIB}",
            "a/b/memory.current": f"{GIB}",
            "a/memory.max": f"{3 * GIB}",
            "a/memory.current": f"{2 * GIB}",
        },
    )
    room = machine_room(proc, groups)
    assert room is not None
    assert (room.limit_bytes, room.free_bytes) == (3 * GIB, GIB)


def test_a_group_of_version_one(proc: Path, groups: Path) -> None:
    write(proc, {"self/cgroup": "4:cpu,memory:/job\n1:cpu:/\n0::/\n"})
    write(
        groups / "memory",
        {
            "job/memory.limit_in_bytes": f"{GIB}",
            "job/memory.usage_in_bytes": f"{GIB // 2}",
            "job/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\n",
            "memory.limit_in_bytes": "9223372036854771712",
            "memory.usage_in_bytes": f"{GIB}",
        },
    )
    room = machine_room(proc, groups)
    assert room is not None
    assert (room.limit_bytes, room.used_bytes) == (GIB, GIB // 4)


def test_in_a_container_the_groups_folder_is_the_mount_itself(proc: Path, groups: Path) -> None:
    write(proc, {"self/cgroup": "0::/../../kubepods/pod1\n"})
    write(groups, {"memory.max": f"{GIB}", "memory.current": "0"})
    room = machine_room(proc, groups)
    assert room is not None
    assert room.limit_bytes == GIB


def test_without_a_group_the_machine_is_the_limit(proc: Path, groups: Path) -> None:
    room = machine_room(proc, groups)
    assert room == Room(8 * GIB, 2 * GIB, "this machine")


def test_no_figures_are_no_limit(tmp_path: Path) -> None:
    assert machine_room(tmp_path, tmp_path) is None


def test_a_full_group_has_nothing_free() -> None:
    assert Room(5, 7, "test").free_bytes == 0


def test_the_real_machine_has_a_limit() -> None:
    room = machine_room()
    if room is None:
        pytest.skip("this system has neither /proc/meminfo nor control groups")
    assert 0 < room.used_bytes < room.limit_bytes


def test_a_setting_limits_this_process() -> None:
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("this system has no /proc")
    room = process_room(GIB)()
    assert room is not None
    assert room.limit_bytes == GIB
    assert room.used_bytes > 1 << 20


def test_words_for_a_message() -> None:
    assert str(Room(GIB, GIB // 2, "this machine")) == "512 MiB of 1 GiB used by this machine"
