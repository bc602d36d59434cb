"""`kvferry handoff eval` on tiny models: the verdict, the exit status, the files."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from kvferry.cli.handoff import app as handoff
from kvferry.cli.handoff_eval import evaluate
from kvferry.errors import FormatError, UsageError
from kvferry.runs.directory import RunDirectory

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "safetensors"))), reason="needs the extra transformers"
)

app = App()
app.command(evaluate, name="eval")


def run(app_: App, words: list[str]) -> int:
    status: int = app_(words, exit_on_error=False, print_error=False, result_action="return_value")
    return status


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, the map of it to itself, and the text that it was fitted on."""
    from ..e2e.model import save_tiny_llama

    folder = tmp_path_factory.mktemp("eval")
    save_tiny_llama(folder / "small", seed=1)
    (folder / "text").mkdir()
    for at in range(12):
        words = [f"{(at * 7919 + word * word) % 9973}" for word in range(200)]
        (folder / "text" / f"{at}.txt").write_text(" ".join(words))
    words = ["fit", str(folder / "small"), str(folder / "small"), "--text", str(folder / "text")]
    words += ["--tokens", "6000", "--length", "128", "--most-layers", "1", "--threads", "1"]
    assert run(handoff, [*words, "--out", str(folder / "map")]) == 0
    with (folder / "items.jsonl").open("w") as file:
        for at in range(8):
            text = (folder / "text" / f"{at}.txt").read_text()
            row = {"document": str(at), "context": text[:60], "continuation": text[60:90]}
            file.write(json.dumps(row) + "\n")
    return folder


def words(place: Path, *more: str) -> list[str]:
    models = [str(place / "small")] * 2
    return ["eval", *models, "--map", str(place / "map"), "--threads", "1", *more]


def own(place: Path, *more: str) -> list[str]:
    return words(place, "--items", str(place / "items.jsonl"), *more)


def as_json(place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert run(app, own(place, "--json", *more)) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_a_map_to_itself_agrees(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(place, capsys)
    assert found["figures"]["top1@32"]["value"] > 0.9
    assert found["figures"]["kl"]["value"] < 0.01


def test_json_has_the_documented_parts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(place, capsys)
    assert {"arms", "figures", "verdict", "curve", "beyond", "longer", "turns", "gate"} <= found.keys()
    assert found["map"]["calibrated_positions"] == 128
    assert found["beyond"]["kind"] == "refused"


def test_the_verdict_is_printed_last(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, own(place)) == 0
    said = capsys.readouterr()
    assert "verdict: do not use" in said.out
    last = said.out.splitlines()[-1]
    assert last.startswith("verdict on contexts longer than those calibrated: not judged, no item has")
    assert "agreement over 32 tokens" in said.out
    assert "gate: native KV injected again" in said.err


def test_a_requirement_that_is_met_ends_well(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, own(place, "--require", "top1>=0.5", "--require", "kl<=1")) == 0
    assert capsys.readouterr().out.count(": met (") == 2


def test_a_requirement_that_is_not_met_is_exit_status_1(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, own(place, "--require", "top1>=0.5", "--require", "gain_over_none>=1e9")) == 1
    assert "required gain_over_none>=1e9: NOT met (lower end" in capsys.readouterr().out


def test_a_page_is_written(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    assert run(app, own(place, "--html", str(tmp_path / "page.html"))) == 0
    assert "Do not use" in (tmp_path / "page.html").read_text()


def test_a_run_is_recorded(place: Path, tmp_path: Path) -> None:
    assert run(app, own(place, "--record", str(tmp_path / "run"))) == 0
    kept = RunDirectory.open(tmp_path / "run")
    lines = list(kept.requests())
    assert [line["item"] for line in lines] == list(range(1, 9))
    assert lines[0]["arms"]["mapped"]["top1"] > 0.5
    assert kept.summary()["verdict"]["answer"] == "do not use"


def test_bundled_tasks_and_own_items_together(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--tasks", "recall", "--limit", "2", "--context-tokens", "64")
    assert as_json(place, capsys, *more)["items"] == {"items": 2, "recall": 2}


def test_longer_contexts_are_judged_apart(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--tasks", "recall", "--limit", "6", "--longer-tokens", "200")
    assert run(app, words(place, *more)) == 0
    said = capsys.readouterr().out
    assert "6 recall; 6 documents" in said
    assert "6 items have contexts of more than the 128 calibrated positions" in said
    assert said.splitlines()[-1].startswith("verdict on contexts of 1")
    assert "longer than the 128 calibrated positions: do not use; " in said


def test_a_requirement_may_be_of_longer_contexts(place: Path) -> None:
    assert run(app, own(place, "--require", "longer_top1>=0.1")) == 1


def test_documents_of_the_fit_are_left_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--tasks", "recall", "--limit", "2", "--context-tokens", "64")
    noted = [
        any("is not known" in note for note in as_json(place, capsys, *more, *extra)["notes"])
        for extra in ((), ("--fitted-on", str(place / "text")))
    ]
    assert noted == [True, False]


def test_a_folder_of_the_fit_that_is_not_there_is_named_as_it_was_given(place: Path) -> None:
    with pytest.raises(FormatError, match=r"^--fitted-on /nope: no such folder"):
        run(app, words(place, "--fitted-on", "/nope"))


def test_a_folder_that_holds_a_run_is_refused_before_a_model_is_loaded(place: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="already holds a run"):
        run(app, ["eval", "no-such-model", "neither", "--map", str(place / "map"), "--record", str(tmp_path)])


def test_a_page_that_is_a_folder_is_refused_before_a_model_is_loaded(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        run(app, ["eval", "no-such-model", "neither", "--map", str(place / "map"), "--html", str(tmp_path)])


def test_a_file_that_is_no_map_is_refused_before_a_model_is_loaded(place: Path) -> None:
    with pytest.raises(FormatError, match="not a map"):
        run(app, ["eval", "no-such-model", "neither", "--map", str(place / "items.jsonl")])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--require", "top2>=1"], "no figure 'top2'"),
        (["--tasks", "riddles"], "no task 'riddles'"),
        (["--hold-back", "0"], "--hold-back"),
        (["--hold-back", "x"], "--hold-back"),
        (["--limit", "0"], "--limit is at least 1"),
        (["--context-tokens", "8"], "--context-tokens is at least 32"),
        (["--longer-tokens", "8"], "--longer-tokens is at least 32"),
        (["--tasks", ""], "--tasks '': names none"),
        (["--seed", "-1"], "--seed -1: from 0"),
        (["--threads", "0"], "--threads 0: at least 1"),
        (["--device", "foo"], "--device foo: not known"),
        (["--device", "meta"], "--device meta: not one"),
        (["--dtype", "foo"], "--dtype foo: not known"),
    ],
)
def test_senseless_options_are_refused_before_a_model_is_loaded(
    place: Path, more: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run(app, ["eval", "no-such-model", "neither", "--map", str(place / "map"), *more])


def test_a_missing_map_is_named_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        run(app, ["eval", "no-such-model", "neither", "--map", str(tmp_path / "map")])
