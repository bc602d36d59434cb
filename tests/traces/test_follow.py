"""Recording from files that grow, and writers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from reading import read

from kvferry.traces import Problems, open_trace
from kvferry.traces.follow import Tail, follow_decisions


def record(arrival: float, tokens: int, keys: list[str], **more: Any) -> str:
    fields = {
        "version": 1, "request_id": "secret-name", "replica": "A", "arrival": arrival,
        "tenant_class": "default",
        "prompt_tokens": tokens, "block_tokens": 16, "keys": keys, "ledger": {}, **more,
    }  # fmt: skip
    return json.dumps(fields) + "\n"


def test_only_whole_lines_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == [(1, b"one")]
    with path.open("ab") as file:
        file.write(b"o\n\nthree\n")
    assert list(tail.lines()) == [(2, b"two"), (4, b"three")]


def test_a_file_that_shrinks_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path)
    path.write_bytes(b"one\ntwo\n")
    list(tail.lines())
    path.write_bytes(b"new\n")
    assert list(tail.lines()) == [(1, b"new")]


class Script:
    """Stands for time: at each look, something more has been written."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def __call__(self) -> bool:
        if self.steps:
            self.steps.pop(0)()
        return not self.steps


def test_what_is_written_meanwhile_is_recorded(tmp_path: Path) -> None:
    source, out = tmp_path / "decisions.jsonl", tmp_path / "out.jsonl"

    def add(text: str) -> None:
        with source.open("a") as file:
            file.write(text)

    script = Script(
        lambda: None,
        lambda: add(record(100.0, 40, ["a", "b"])),
        lambda: add(record(101.0, 40, ["a", "b"])[:30]),
        lambda: add(record(101.0, 40, ["a", "b"])[30:] + record(100.5, 32, ["a", "c"])),
    )
    problems = Problems()
    assert follow_decisions([source], out, script, problems=problems, poll_seconds=0.001) == 3
    trace = open_trace(out, strict=True)
    assert [(one.arrival, one.blocks) for one in read(trace)] == [
        (0.0, (0, 1, 2)),
        (0.5, (0, 3)),
        (1.0, (0, 1, 4)),
    ]
    assert trace.naming == "keyed"
    assert "secret-name" not in out.read_text()
    assert problems.count == 0


def test_several_replicas_and_bad_lines(tmp_path: Path) -> None:
    sources = [tmp_path / "1", tmp_path / "2"]
    sources[0].write_text(record(1.0, 16, ["a"]) + "{\n" + record(2.0, 90, ["a"]))
    sources[1].write_text(record(1.5, 16, ["a"]) + record(2.0, 16, ["b"], block_tokens=8))
    problems = Problems()
    assert follow_decisions(sources, tmp_path / "out", Script(lambda: None), problems=problems) == 2
    assert problems.count == 3
    assert [one.blocks for one in read(open_trace(tmp_path / "out"))] == [(0,), (0,)]


def test_a_killed_writer_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    code = (
        "import sys; from pathlib import Path\n"
        "from kvferry.traces.own import TraceWriter\n"
        "from kvferry.traces.synthesis import PRESETS, Recipe, synthesize\n"
        "made = synthesize(Recipe(classes=PRESETS['chat'], requests=10**9))\n"
        "with TraceWriter(Path(sys.argv[1]), made.block_tokens) as writer:\n"
        "    for chunk in made.chunks():\n"
        "        writer.write(chunk)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        for _ in range(600):
            if path.exists() and path.stat().st_size > 1 << 20:
                break
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    trace = open_trace(path, strict=True)
    assert sum(map(len, trace.chunks())) > 1_000
