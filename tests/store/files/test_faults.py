"""Processes that die at any instant, many at once, and disks that are full."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import ConfigError, TierTimeout
from kvferry.store.files import FilesTier
from kvferry.store.files.stamp import NEVER, Stamp
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Put

from ..conftest import Blocks
from .publisher import NUMBERS, key_of, payload_of

PUBLISHER = Path(__file__).with_name("publisher.py")
CAPACITY = 1_000_000
NAMESPACE = b"n" * 32


def publisher(directory: Path, seed: int, rounds: int = 1_000_000) -> subprocess.Popen[str]:
    arguments = [str(directory), str(CAPACITY), str(seed), str(rounds)]
    return subprocess.Popen(
        [sys.executable, str(PUBLISHER), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def check_whole(directory: Path) -> None:
    """The store opens clean, counts exactly, and every block in it is whole."""
    tier = FilesTier(directory, capacity_bytes=CAPACITY, ghost_keys=1000)
    assert os.listdir(directory / "tmp") == []
    usage = tier.usage(10.0)
    assert usage.used_bytes == sum(sizes(directory / "blocks"))
    assert usage.blocks == len(sizes(directory / "blocks"))
    assert usage.used_bytes is not None
    assert usage.used_bytes <= CAPACITY
    keys = [key_of(n) for n in range(NUMBERS)]
    into = [memoryview(bytearray(32_000)) for _ in keys]
    statuses = FramedTier(tier, NAMESPACE).get(keys, into, 10.0)
    assert set(statuses) <= {Got.OK, Got.ABSENT}
    assert all(into[n] == payload_of(n) for n, status in enumerate(statuses) if status == Got.OK)
    tier.close()


@pytest.mark.timeout(120)
def test_killed_at_any_instant(tmp_path: Path) -> None:
    dice = random.Random(7)
    for round_ in range(30):
        process = publisher(tmp_path, round_)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(dice.random() * 0.05)
        process.kill()
        assert process.stdout.read() == ""
        process.wait()
        process.stdout.close()
        check_whole(tmp_path)


@pytest.mark.timeout(120)
def test_many_processes_on_one_directory(tmp_path: Path) -> None:
    processes = [publisher(tmp_path, seed, rounds=15) for seed in range(16)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.read() == "ready\ndone\n"
        assert process.wait(10) == 0
    check_whole(tmp_path)


def test_a_killed_writer_does_not_disturb_a_living_one(tmp_path: Path, blocks: Blocks) -> None:
    tier = FilesTier(tmp_path, ghost_keys=1000)
    soon = time.monotonic() + 9
    drafts = tier._drafts.begin(range(1), [blocks.key(1)], [[blocks.payload(1)]], bytearray(1), soon, 1)
    FilesTier(tmp_path).close()
    assert len(os.listdir(tmp_path / "tmp")) == 1
    tier._drafts.write(drafts[0], [blocks.payload(1)], blocks.key(1), Stamp(0), NEVER)
    tier._drafts.settle(drafts, soon)
    assert tier.find([blocks.key(1)], 1.0) == bytes([Found.HELD])


def test_an_open_lock_file_without_holder_is_no_obstacle(tmp_path: Path) -> None:
    first, second = FilesTier(tmp_path), FilesTier(tmp_path)
    with first._account.hold(time.monotonic() + 1), pytest.raises(TierTimeout, match="held the lock"):
        second.drop([b"k" * 32], 0.05)
    assert second.drop([b"k" * 32], 0.05) == 0


def test_an_exception_under_the_lock_means_counting_anew(tmp_path: Path, blocks: Blocks) -> None:
    tier = FilesTier(tmp_path)
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0)

    def fail() -> None:
        with tier._account.hold(time.monotonic() + 1) as count:
            count.used_bytes = 77
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert tier.usage(1.0).used_bytes == len(blocks.payload(1))


@pytest.mark.parametrize("step", ["pwritev", "link"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tier = FilesTier(tmp_path)
    whole = getattr(os, step)

    def full(*arguments: object) -> Sequence[int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    assert tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0) == bytes([Put.FULL])
    monkeypatch.setattr(os, step, whole)
    assert os.listdir(tmp_path / "tmp") == []
    assert tier.usage(1.0).used_bytes == 0
    assert tier.find([blocks.key(1)], 1.0) == bytes([Found.ABSENT])
    assert tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0) == bytes([Put.STORED])


def test_a_really_full_disk(tmp_path: Path, blocks: Blocks) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        tier = FilesTier(tmp_path, ghost_keys=1000)
        framed = FramedTier(tier, NAMESPACE)
        keys = [blocks.key(n) for n in range(20)]
        statuses = framed.put(keys, [blocks.payload(n) for n in range(20)], 5.0)
        assert set(statuses) == {Put.STORED, Put.FULL}
        read = framed.get(keys, [blocks.blank() for _ in keys], 5.0)
        assert read.count(Got.OK) == statuses.count(Put.STORED)
        assert set(read) == {Got.OK, Got.ABSENT}
        tier.close()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_corrupted_byte_and_a_cut_file_are_found(tmp_path: Path, blocks: Blocks) -> None:
    framed = FramedTier(FilesTier(tmp_path), NAMESPACE)
    keys = [blocks.key(n) for n in range(3)]
    framed.put(keys, [blocks.payload(n) for n in range(3)], 5.0)
    files = [tmp_path / "blocks" / key.hex()[:2] / key.hex() for key in keys]
    with open(files[0], "r+b") as file:
        file.seek(5000)
        file.write(b"!")
    os.truncate(files[1], 5000)
    statuses = framed.get(keys, [blocks.blank() for _ in keys], 5.0)
    assert statuses == bytes([Got.CORRUPT, Got.CORRUPT, Got.OK])


def test_a_wall_clock_that_jumps_costs_blocks_and_never_truth(tmp_path: Path, blocks: Blocks) -> None:
    clock = VirtualClock()
    tier = FilesTier(tmp_path, clock=clock)
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 5.0, ttl_seconds=60.0)
    clock.jump_wall(-1_000_000)
    into = blocks.blank()
    assert tier.get([blocks.key(1)], [[into]], 5.0) == bytes([Got.OK])
    assert into == blocks.payload(1)
    clock.jump_wall(2_000_000)
    assert tier.get([blocks.key(1)], [[into]], 5.0) == bytes([Got.ABSENT])


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="give a directory"):
        FilesTier(tmp_path / "file" / "store")


def test_a_directory_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("kvferry files 99\n")
    with pytest.raises(ConfigError, match="kvferry files 99"):
        FilesTier(tmp_path)
