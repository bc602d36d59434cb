"""The short form of the demo with vLLM, from its command to summary.json. Takes minutes, and needs vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from kvferry.cli.main import main
from kvferry.config import child_environment
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.directory import RunDirectory
from kvferry.runs.vllm_demo_summary import ARMS

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended with status 0: every check of the demo held."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    ended = subprocess.run(
        [sys.executable, "-m", "kvferry", "demo", "--engine", "vllm", "--quick", "--run-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=800,
        env=child_environment(settings=False),
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return folder


@pytest.fixture(scope="module")
def summary(demo: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((demo / "summary.json").read_text())
    return read


def test_every_arm_was_played(summary: dict[str, Any]) -> None:
    assert [name for name in ARMS if summary["arms"][name]["n"] == 0] == []


def test_both_servers_told_their_hits(summary: dict[str, Any]) -> None:
    hits = "vllm:external_prefix_cache_hits_total"
    assert [name for name, found in summary["metrics"].items() if found.get(hits, 0) <= 0] == []


def test_the_record_of_a_hit_can_be_explained(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = list(RunDirectory.open(demo).decisions(DecisionRecord))
    loaded = next(record for record in records if record.path == "pool_hit")
    assert main(["why", str(demo), loaded.request_id]) == 0
    assert "recompute" in capsys.readouterr().out
