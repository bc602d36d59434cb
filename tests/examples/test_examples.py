"""Every example runs as its reader would run it, and says what the documentation says that it says."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TRIED_HERE = {"break_even", "gate_decides", "replay_decisions", "two_replicas"}
TRIED_ELSEWHERE = {
    "exercise_13_1": "tests/examples/test_exercises_13.py",
    "exercise_13_2": "tests/examples/test_exercises_13.py",
    "plugin_tier": "tests/testing/test_tiers.py runs the suite over it",
}

needs_an_engine = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "starlette", "uvicorn", "aiohttp"))),
    reason="needs the extras transformers and gateway",
)


def run(name: str, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TRIED_HERE | set(TRIED_ELSEWHERE)


@pytest.mark.parametrize(
    "line",
    [
        "loading wins above 4.464 GiB/s",
        "2GiB/s: load    129 ms, so recompute",
        "8GiB/s: load  35.25 ms, so carry",
    ],
)
def test_break_even(line: str) -> None:
    assert line in run("break_even").stdout


@pytest.mark.parametrize(
    "words",
    ["load (pays)", "compute (slower)", "the rule turns at 38.88 MiB/s", "(pays_in_part)"],
)
def test_gate_decides(words: str) -> None:
    assert words in run("gate_decides").stdout


def test_replay_agrees_with_every_record() -> None:
    done = run("replay_decisions", str(ROOT / "tests" / "golden"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "3 records: 1 same, 2 without a decision")


def test_replay_finds_a_record_that_does_not_follow_from_its_facts(tmp_path: Path) -> None:
    for name in ("run.json", "decisions.jsonl"):
        text = (ROOT / "tests" / "golden" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace('"reason":"pays"', '"reason":"slower"'), encoding="utf-8")
    done = run("replay_decisions", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "req-1: slower was recorded: different")


@needs_an_engine
@pytest.mark.slow
@pytest.mark.parametrize("words", ["pool_hit", "the answers of A and B are the same", "B-first on B"])
def test_two_replicas_share_over_a_directory(two_replicas_said: str, words: str) -> None:
    assert words in two_replicas_said


@needs_an_engine
@pytest.mark.real_model
def test_two_replicas_with_the_packaged_model() -> None:
    done = run("two_replicas", seconds=280.0)
    assert done.returncode == 0, done.stderr
    assert "the answers of A and B are the same" in done.stdout


@pytest.fixture(scope="module")
def two_replicas_said(tmp_path_factory: pytest.TempPathFactory) -> str:
    # Imported late: it needs torch, and the other examples do not.
    from ..e2e.model import save_tiny_llama

    model = save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama", seed=7)
    # So small a model is computed faster than anything is loaded: what is tried here is carrying.
    options = ["--set", "gate.policy=always", "--set", "block_tokens=8", "--characters", "300"]
    done = run("two_replicas", "--model", str(model), *options, seconds=200.0)
    assert done.returncode == 0, done.stderr
    return done.stdout
