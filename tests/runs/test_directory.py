from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvferry.clock import VirtualClock
from kvferry.config import load
from kvferry.errors import FormatError, UsageError
from kvferry.runs import RunDirectory


def create(path: Path, *overrides: str) -> RunDirectory:
    loaded = load(env={}, overrides=overrides)
    return RunDirectory.create(
        path,
        command=["kvferry", "demo", *(f"--set={override}" for override in overrides)],
        config=loaded.config,
        origins=loaded.origins,
        seed=7,
        equal={"model": "smollm2"},
        clock=VirtualClock(wall=0.0),
    )


def test_run_json_says_what_was_run(tmp_path: Path) -> None:
    create(tmp_path / "run", "gate.margin=5ms")
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["command"] == ["kvferry", "demo", "--set=gate.margin=5ms"]
    assert written["config"]["gate.margin"] == {"value": 0.005, "origin": "--set gate.margin"}
    assert written["seed"] == 7
    assert written["started"] == "1970-01-01T00:00:00+00:00"
    assert {"kvferry", "python"} <= written["versions"].keys()
    assert written["machine"]["cores"] >= 1


def test_run_json_holds_no_secret(tmp_path: Path) -> None:
    create(tmp_path, "tenant_secret=sesame", "pool=valkey://:sesame@h:1")
    assert "sesame" not in (tmp_path / "run.json").read_text()


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.append_decision({"request_id": "a"})
        run.append_request({"ttft_seconds": 1.5})
        run.write_summary({"flip": math.inf, "arms": {"cold": {"n": 3}}})
    read = RunDirectory.open(tmp_path)
    assert read.header == run.header
    assert list(read.decisions()) == [{"request_id": "a"}]
    assert list(read.requests()) == [{"ttft_seconds": 1.5}]
    assert read.summary() == {"flip": None, "arms": {"cold": {"n": 3}}}


def test_a_folder_with_a_run_is_not_used_again(tmp_path: Path) -> None:
    create(tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        create(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="cannot make this folder"):
        create(tmp_path / "run")


def test_a_run_that_did_not_end_has_no_summary(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did not come to its end"):
        create(tmp_path).summary()


def test_a_summary_is_replaced_whole(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write_summary({"a": 1})
    run.write_summary({"b": 2})
    assert run.summary() == {"b": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "summary.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"seed": 1}', ""])
def test_a_broken_run_json_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError, match=r"run\.json"):
        RunDirectory.open(tmp_path)


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    create(tmp_path)
    header = json.loads((tmp_path / "run.json").read_text()) | {"format_version": 99}
    (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(FormatError, match="format_version 99"):
        RunDirectory.open(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nodir: there is no such folder"):
        RunDirectory.open(tmp_path / "nodir")
