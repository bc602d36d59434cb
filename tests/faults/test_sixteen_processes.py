"""Sixteen processes on one directory, half of which are killed at any moment: the others notice nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvferry.store.files import FilesTier
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Got

from ..store.files.publisher import NUMBERS, key_of, payload_of

PUBLISHER = Path(__file__).parents[1] / "store" / "files" / "publisher.py"
CAPACITY = 1_000_000


@pytest.mark.timeout(180)
def test_the_living_are_not_disturbed_by_the_dead(tmp_path: Path) -> None:
    dice = random.Random(16)
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(PUBLISHER),
                str(tmp_path),
                str(CAPACITY),
                str(seed),
                "15" if seed % 2 else "100000",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in range(16)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes[::2]:
        time.sleep(dice.random() * 0.02)
        process.kill()
    # Not communicate(timeout=...): it overlooks what readline has read ahead of a quick process.
    assert [process.stdout.read() if process.stdout else None for process in processes] == ["", "done\n"] * 8
    assert [process.wait(10) for process in processes[1::2]] == [0] * 8
    tier = FilesTier(tmp_path, capacity_bytes=CAPACITY, ghost_keys=1000)
    sizes = [path.stat().st_size for path in (tmp_path / "blocks").rglob("*") if path.is_file()]
    usage = tier.usage(10.0)
    assert (usage.used_bytes, usage.blocks) == (sum(sizes), len(sizes))
    assert sum(sizes) <= CAPACITY
    assert os.listdir(tmp_path / "tmp") == []
    into = [memoryview(bytearray(len(payload_of(0)))) for _ in range(NUMBERS)]
    statuses = FramedTier(tier, b"n" * 32).get([key_of(n) for n in range(NUMBERS)], into, 10.0)
    assert set(statuses) <= {Got.OK, Got.ABSENT}
    assert all(into[n] == payload_of(n) for n, status in enumerate(statuses) if status == Got.OK)
