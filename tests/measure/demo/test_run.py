"""What the demo asks of its replicas; tests/e2e plays it from beginning to end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from kvferry.config import load
from kvferry.measure.demo.replicas import Replica
from kvferry.measure.demo.run import SETTINGS, start_replica
from kvferry.runs.directory import RunDirectory


class Started:
    """A replica that only remembers how it was started."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: dict[str, str] = {}

    async def start(self, *, settings: dict[str, str], **_: Any) -> None:
        self.settings = settings


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_replica_leaves_its_profile_in_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The replica is another process: a relative folder must mean the same to it.
    monkeypatch.chdir(tmp_path)
    replica = Started(name)
    with RunDirectory.create(
        Path("run"), command=["kvferry"], config=load().config, origins={}, seed=1, equal={}
    ) as run:
        asyncio.run(start_replica(cast(Replica, replica), run, "model", "files:///pool"))
    settings = replica.settings
    assert settings["profile"] == str(tmp_path / "run" / f"profile-{name}.json")
    assert settings.items() >= {**SETTINGS, "pool": "files:///pool"}.items()
