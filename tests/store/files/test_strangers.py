"""What does not belong in a files tier's folder, and folders that go away: told, never a bare OSError."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.errors import TierUnavailable
from kvferry.store.files import FilesTier
from kvferry.store.tier import Found, Put

from ..conftest import Blocks

CALLS: dict[str, Callable[[FilesTier, Blocks], object]] = {
    "find": lambda tier, blocks: tier.find([blocks.key(1)], 1.0),
    "put": lambda tier, blocks: tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0),
    "drop": lambda tier, blocks: tier.drop([blocks.key(1)], 1.0),
    "lease": lambda tier, blocks: tier.lease([b"name"], b"holder", 1.0, 1.0),
    "release": lambda tier, blocks: tier.release([b"name"], b"holder", 1.0),
    "write_note": lambda tier, blocks: tier.write_note("name", b"value", 1.0),
    "notes": lambda tier, blocks: tier.notes("", 1.0),
    "scan": lambda tier, blocks: list(tier.scan(1.0)),
    "usage": lambda tier, blocks: tier.usage(1.0),
    "sweep": lambda tier, blocks: tier.sweep(1.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_folder_that_went_away_is_an_unavailable_tier(
    tmp_path: Path, blocks: Blocks, call: Callable[[FilesTier, Blocks], object]
) -> None:
    tier = FilesTier(tmp_path / "pool", ghost_keys=1000)
    shutil.rmtree(tmp_path / "pool")
    with pytest.raises(TierUnavailable):
        tier.put([blocks.key(0)], [[blocks.payload(0)]], 1.0)
    with pytest.raises(TierUnavailable):
        call(tier, blocks)


def test_files_of_others_are_left_alone(tmp_path: Path, blocks: Blocks) -> None:
    size = len(blocks.payload(0))
    tier = FilesTier(tmp_path, capacity_bytes=5 * size, ghost_keys=1000)
    tier.put([blocks.key(0)], [[blocks.payload(0)]], 5.0)
    folder = tmp_path / "blocks" / blocks.key(0).hex()[:2]
    # A file that NFS keeps while somebody has it open, one that a file browser leaves, and folders.
    strangers = [folder / ".nfs0000000000a1", tmp_path / "blocks" / ".DS_Store"]
    for path in strangers:
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    for name in ("tmp", "leases"):
        (tmp_path / name / "folder").mkdir()
        os.utime(tmp_path / name / "folder", (1, 1))
    keys = [blocks.key(n) for n in range(1, 13)]
    assert tier.put(keys, [[blocks.payload(n)] for n in range(1, 13)], 5.0).count(Put.STORED) >= 5
    again = FilesTier(tmp_path, capacity_bytes=5 * size, ghost_keys=1000)
    usage = again.usage(1.0)
    assert usage.blocks is not None
    assert usage.used_bytes == usage.blocks * size
    assert len(list(again.scan(1.0))) == usage.blocks
    assert again.sweep(1.0) == 0
    assert again.find([blocks.key(0)], 1.0) == bytes([Found.GHOST])
    assert all(path.exists() for path in strangers)


def test_a_value_larger_than_the_file_system_takes_leaves_nothing(
    tmp_path: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = FilesTier(tmp_path, ghost_keys=1000)

    def refuse(fd: int, size: int) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr("kvferry.store.files.drafts.os.ftruncate", refuse)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert tier.put([blocks.key(0)], [[blocks.payload(0)]], 5.0) == bytes([Put.FULL])
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((tmp_path / "tmp").iterdir())
    assert tier.usage(1.0).used_bytes == 0
