"""`kvferry trace record`, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, Parameter

from kvferry.cli.trace_record import record
from kvferry.errors import FormatError, UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "decisions.jsonl"
MOONCAKE = [{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command in an empty folder; its exit status."""
    app = App(default_parameter=Parameter(negative=()))
    app.command(record)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> int:
        return app(words, exit_on_error=False, print_error=False, result_action="return_value")

    return call


def write(name: str, records: list[Any]) -> None:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records)
    Path(name).write_text(text)


def requests(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()[1:]]


def test_record_reads_decisions(run: Callable[..., int]) -> None:
    assert run("record", str(GOLDEN), "r.jsonl") == 0
    assert len(requests("r.jsonl")) == 3
    assert all(len(key) == 32 for one in requests("r.jsonl") for key in one.get("keys", []) if key)


def test_record_refuses_what_is_no_record(run: Callable[..., int]) -> None:
    write("m.jsonl", MOONCAKE)
    with pytest.raises(FormatError, match="kvferry trace convert"):
        run("record", "m.jsonl", "r.jsonl")
    with pytest.raises(UsageError, match="--follow"):
        run("record", str(GOLDEN), "r.jsonl", "--seconds", "1s")
    with pytest.raises(UsageError, match="hold keyed hashes already"):
        run("record", str(GOLDEN), "r.jsonl", "--secret-file", "x")


def test_record_follows_until_its_time_is_over(run: Callable[..., int]) -> None:
    write("decisions.jsonl", GOLDEN.read_text().splitlines())
    assert run("record", "decisions.jsonl", "r.jsonl", "--follow", "--seconds", "10ms") == 0
    assert len(requests("r.jsonl")) == 3


def test_record_follows_until_interrupted(run: Callable[..., int]) -> None:
    write("decisions.jsonl", GOLDEN.read_text().splitlines())

    def interrupt() -> None:
        for _ in range(600):
            if Path("r.jsonl").exists() and Path("r.jsonl").stat().st_size:
                break
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run("record", ".", "r.jsonl", "--follow", "--seconds", "20s") == 0
    thread.join()
    assert len(requests("r.jsonl")) == 3


def test_record_says_when_no_engine_answers(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zmq")
    assert run("record", "ipc://nobody", "e.jsonl", "--seconds", "50ms") == 1
    assert "--kv-events-config" in capsys.readouterr().err
