"""`kvferry handoff train` on tiny models of two families: what is written, and what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import App

from kvferry.cli.handoff_train import train
from kvferry.errors import InputError

from .crossing_pair import save_pair, train_words

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "safetensors"))), reason="needs the extra transformers"
)


def main(words: list[str]) -> int:
    app = App(name="handoff")
    app.command(train)
    status: int = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return status


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    out = place / "cross.safetensors"
    assert main(train_words(place, out)) == 0
    return out


def test_a_map_that_failed_is_said_to_have(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(place, tmp_path / "map")) == 0
    captured = capsys.readouterr()
    for part in (
        "closed form on",
        "the map is better by",
        "none",
        "random",
        "target",
        "1 CPU thread",
        "FAILED",
    ):
        assert part in captured.out
    assert "stripped keys are the model's own" in captured.err


def test_figures_are_given_to_machines(
    place: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.handoff.crossing.file import open_cross_map

    assert main(train_words(place, tmp_path / "map", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    helped = found["training_gain"] > 0
    assert found["trained_tokens"] >= 300 if helped else found["trained_tokens"] == 0
    assert found["settings"]["hold_back"] == [1, 3]
    other = "closed form" if helped else "trained, not kept"
    assert set(found["nll"]) == {"target", "mapped", other, "random", "none"}
    assert found["held_out_texts"] == 6
    assert not found["beats_controls"]
    made = open_cross_map(tmp_path / "map")
    assert made.digest() == found["digest"] == open_cross_map(trained).digest()


def test_a_training_out_of_time_goes_on_by_the_same_command(
    place: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.handoff.crossing.file import open_cross_map

    out, beside = tmp_path / "map", tmp_path / "map.checkpoint"
    assert main(train_words(place, out, "--time-limit", "1ms")) == 0
    assert beside.exists()
    assert "run the same command again to go on" in capsys.readouterr().out
    assert main(train_words(place, out)) == 0
    assert "going on from step 0" in capsys.readouterr().err
    assert open_cross_map(out).digest() == open_cross_map(trained).digest()
    assert not beside.exists()


def test_a_training_that_is_killed_goes_on_by_the_same_command(
    place: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9, as soon as something was kept: of the closed form, unless the test was held up."""
    from kvferry.handoff.crossing.file import open_cross_map

    out, beside = tmp_path / "map", tmp_path / "map.checkpoint"
    words = train_words(place, out, "--checkpoint-seconds", "0")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvferry", "handoff", *words], stdout=log, stderr=log
        )
        deadline = time.monotonic() + 120
        while not beside.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    assert beside.exists(), (tmp_path / "log").read_text()
    assert not out.exists()
    assert main(words) == 0
    assert "going on" in capsys.readouterr().err
    assert open_cross_map(out).digest() == open_cross_map(trained).digest()


def test_another_text_is_trained_on_and_not_gone_on_with(place: Path, tmp_path: Path) -> None:
    from kvferry.handoff.crossing.file import open_cross_map

    out, digests = tmp_path / "map", []
    for name in ("text", "other"):
        words = train_words(place, out)
        words[words.index("--text") + 1] = str(place / name)
        assert main(words) == 0
        digests.append(open_cross_map(out).digest())
    assert digests[0] != digests[1]


def test_a_map_knows_what_it_must_not_be_measured_on(place: Path, trained: Path) -> None:
    from kvferry.handoff.crossing.file import open_cross_map
    from kvferry.handoff.mapping.texts import read_documents, split_documents
    from kvferry.measure.retention.tasks.library import digest_of

    parts = split_documents(read_documents(place / "text"))
    seen = open_cross_map(trained).seen_documents
    assert seen == {digest_of(one.text) for part in ("train", "validation") for one in parts[part]}
    assert not seen & {digest_of(one.text) for one in parts["test"]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out", "FOLDER"], "--out .*: a folder"),
        (["--out", "FILE/map"], "is no folder"),
        (["--checkpoint", "OUT"], "the map's own place"),
        (["--threads", "0"], "--threads 0"),
        (["--device", "foo"], "--device foo"),
        (["--dtype", "foo"], "--dtype foo"),
        (["--held-out", "0"], "--held-out 0: an interval needs 6"),
        (["--text", "/nope"], "--text /nope"),
        (["--width", "100"], "width 100: write a multiple of 16"),
        (["--checkpoint-seconds", "-1"], "--checkpoint-seconds -1: must be 0 or more"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--source-layers", "0"], "source-layers must be at least 1"),
    ],
)
def test_a_wrong_option_is_named_before_a_model_is_read(
    words: list[str], told: str, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    names = {"FOLDER": str(tmp_path), "FILE/map": str(tmp_path / "file/map"), "OUT": str(tmp_path / "map")}
    base = ["train", "/nowhere/a", "/nowhere/b", "--out", str(tmp_path / "map")]
    base = base[:3] if words[0] == "--out" else base
    with pytest.raises(InputError, match=told):
        main([*base, *(names.get(one, one) for one in words)])


def test_too_little_text_is_refused_before_the_training(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted((place / "text").iterdir())[:8]:
        (tmp_path / "few").mkdir(exist_ok=True)
        (tmp_path / "few" / path.name).write_text(path.read_text())
    words = train_words(place, tmp_path / "map")
    words[words.index("--text") + 1] = str(tmp_path / "few")
    with pytest.raises(InputError, match="an interval needs 6: give more text"):
        main(words)
    assert "closed form" not in capsys.readouterr().err
