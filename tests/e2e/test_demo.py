"""The short form of the demo, from its command to summary.json. Takes minutes: two cores and a real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry.config import child_environment
from kvferry.cost.profile import Origin, decode_profile
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.directory import RunDirectory

# A first run fetches the model too.
pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended with status 0: every check of the demo held."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    ended = subprocess.run(
        [sys.executable, "-m", "kvferry", "demo", "--quick", "--run-dir", str(folder)],
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


def test_the_summary_has_what_is_promised(summary: dict[str, Any]) -> None:
    figures = {
        "": ("model", "block_tokens", "bytes_per_token", "outputs_identical"),
        "arms": ("cold", "local_hit", "pool_hit", "declined", "fallback"),
        "ledger": ("prompt_tokens",),
        "flip": ("predicted_bytes_per_second", "accepted_at", "declined_at"),
        "policies": ("gate", "always", "never"),
        "pool_killed": ("recomputed", "outputs_identical", "recovered"),
        "bytes": ("published", "read", "never_read"),
    }
    missing = [
        f"{group}.{name}"
        for group, names in figures.items()
        for name in names
        if name not in (summary[group] if group else summary)
    ]
    assert missing == []


def test_every_arm_was_seen(summary: dict[str, Any]) -> None:
    assert [
        name for name, arm in summary["arms"].items() if arm["n"] == 0 or arm["p50_seconds"] is None
    ] == []


def test_answers_are_the_same_in_all_arms(summary: dict[str, Any]) -> None:
    assert summary["outputs_identical"] is True
    assert summary["pool_killed"]["outputs_identical"] is True


def test_every_token_is_booked_once(summary: dict[str, Any]) -> None:
    ledger = dict(summary["ledger"])
    assert ledger.pop("prompt_tokens") == sum(ledger.values())


def test_sharing_beat_computing(summary: dict[str, Any]) -> None:
    arms = summary["arms"]
    assert arms["pool_hit"]["p50_seconds"] < arms["cold"]["p50_seconds"]


def test_the_lost_pool_was_survived(summary: dict[str, Any]) -> None:
    assert summary["pool_killed"]["recomputed"] > 0
    assert summary["pool_killed"]["recovered"] is True


def test_every_decision_is_recorded_and_told(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.open(demo)
    records = list(run.decisions(DecisionRecord))
    assert len(records) == len(list(run.requests()))
    loaded = next(record for record in records if record.path == "pool_hit")
    assert main(["why", str(demo), loaded.request_id]) == 0
    assert "recompute" in capsys.readouterr().out


@pytest.mark.parametrize("replica", ["A", "B"])
def test_each_replica_leaves_what_it_measured(demo: Path, summary: dict[str, Any], replica: str) -> None:
    path = demo / f"profile-{replica}.json"
    profile = decode_profile(path.read_bytes(), str(path))
    rate = profile.legs["pool"].bytes_per_second
    assert profile.prefill.token_seconds.origin is Origin.MEASURED
    assert rate is not None
    # Of the link as it is: the last rate to which the demo throttles it lies around the turn.
    assert rate.value > 4 * summary["flip"]["predicted_bytes_per_second"]
