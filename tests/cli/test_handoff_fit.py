"""`kvferry handoff fit` and `apply` on tiny models: what is written, and what is said."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.handoff import app
from kvferry.errors import InputError

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "safetensors"))), reason="needs the extra transformers"
)


def main(words: list[str]) -> int:
    status: int = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return status


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny models with one tokenizer, and twelve documents."""
    from ..e2e.model import save_tiny_llama

    folder = tmp_path_factory.mktemp("fit")
    save_tiny_llama(folder / "small", seed=1)
    save_tiny_llama(folder / "large", seed=2)
    (folder / "text").mkdir()
    for at in range(12):
        words = [f"{(at * 7919 + word * word) % 9973}" for word in range(200)]
        (folder / "text" / f"{at}.txt").write_text(" ".join(words))
    return folder


@pytest.fixture(scope="module")
def fitted(place: Path) -> Path:
    out = place / "map.safetensors"
    assert main(["fit", *models(place, "small", "small"), *options(place), "--out", str(out)]) == 0
    return out


def models(place: Path, *names: str) -> list[str]:
    return [str(place / name) for name in names]


def options(place: Path) -> list[str]:
    return [
        *("--text", str(place / "text"), "--tokens", "6000", "--length", "128"),
        *("--most-layers", "1", "--threads", "1"),
    ]


def fit_json(place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    words = ["fit", *models(place, "small", "large"), *options(place)]
    assert main([*words, "--out", str(place / "other"), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def apply_words(place: Path, map_file: Path, *names: str) -> list[str]:
    prompt = [
        "--prompt",
        str(place / "text" / "3.txt"),
        "--tokens",
        "100",
        "--repeats",
        "1",
        "--threads",
        "1",
    ]
    return ["apply", str(map_file), *models(place, *names), *prompt]


def test_a_model_s_map_to_itself_is_exact(
    place: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*apply_words(place, fitted, "small", "small"), "--offset", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["key_cosine"], found["value_cosine"]) == pytest.approx((1.0, 1.0), abs=1e-3)


def test_apply_shows_the_target_s_prefill_beside_it(
    place: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(apply_words(place, fitted, "small", "small")) == 0
    said = capsys.readouterr().out
    assert "target's own prefill" in said
    assert "times as fast" in said


def test_fit_says_what_it_must(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", *models(place, "small", "large"), *options(place)]
    assert main([*words, "--out", str(place / "third")]) == 0
    captured = capsys.readouterr()
    for part in ("rows per parameter", "R2 of K", "worst layer", "bytes", "source prefill"):
        assert part in captured.out
    assert "stripped keys are the model's own" in captured.err


def test_figures_are_of_every_layer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fit_json(place, capsys)
    assert [len(found[name]) for name in ("keys_r2", "values_r2", "attention_cosine", "lambdas")] == [2] * 4
    assert found["positions"] == 128
    assert found["curve"][-1]["rows"] == found["rows"]


def test_options_reach_the_recipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fit_json(place, capsys, "--inputs", "full", "--unweighted", "--stride", "2")
    assert (found["inputs"], found["weighted"], found["parameters_per_head"]) == ("full", False, 32)


@pytest.fixture
def killed(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output of a fit that was killed at its twentieth sequence."""
    from kvferry.handoff.mapping.fitting import Fitting

    with monkeypatch.context() as patch:
        trained, count = Fitting.train, [0]

        def train(self: Fitting, rows: Any) -> None:
            count[0] += 1
            if count[0] == 20:
                raise RuntimeError("killed")
            trained(self, rows)

        patch.setattr(Fitting, "train", train)
        words = ["fit", *models(place, "small", "large"), *options(place), "--checkpoint-seconds", "0"]
        with pytest.raises(RuntimeError, match="killed"):
            main([*words, "--out", str(tmp_path / "x.map")])
    return tmp_path / "x.map"


def test_a_killed_fit_goes_on(place: Path, killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", *models(place, "small", "large"), *options(place), "--out"]
    assert main([*words, str(killed), "--json"]) == 0
    captured = capsys.readouterr()
    assert "goes on behind 19 train" in captured.err
    assert main([*words, str(killed.with_name("y.map")), "--json"]) == 0
    assert json.loads(captured.out)["digest"] == json.loads(capsys.readouterr().out)["digest"]


def test_a_fit_that_is_done_leaves_only_the_map(place: Path, killed: Path) -> None:
    assert [path.name for path in killed.parent.iterdir()] == ["x.map.fit"]
    main(["fit", *models(place, "small", "large"), *options(place), "--out", str(killed), "--json"])
    assert [path.name for path in killed.parent.iterdir()] == ["x.map"]


def test_a_killed_fit_of_other_settings_is_refused(place: Path, killed: Path) -> None:
    words = ["fit", *models(place, "small", "large"), *options(place), "--out", str(killed)]
    assert "stride is 1 there and 2 here" in failed([*words, "--stride", "2"])


def test_fresh_begins_anew(place: Path, killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", *models(place, "small", "large"), *options(place), "--out", str(killed)]
    assert main([*words, "--stride", "2", "--fresh"]) == 0
    assert "goes on" not in capsys.readouterr().err


def failed(words: list[str]) -> str:
    with pytest.raises(InputError) as caught:
        main(words)
    return str(caught.value)


def test_a_map_for_other_models_is_refused(place: Path, fitted: Path) -> None:
    assert "differs in weights_revision" in failed(apply_words(place, fitted, "small", "large"))


def test_models_that_cut_text_differently_are_refused(place: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(place / "large", tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["1"], fields["model"]["vocab"]["2"] = (
        fields["model"]["vocab"]["2"],
        fields["model"]["vocab"]["1"],
    )
    path.write_text(json.dumps(fields))
    words = ["fit", str(place / "small"), str(tmp_path / "other"), *options(place)]
    assert "different tokens" in failed([*words, "--out", str(tmp_path / "m")])


@pytest.mark.parametrize("change", [["--repeats", "0"], ["--tokens", "1"], ["--offset", "-1"]])
def test_senseless_numbers_are_refused(place: Path, fitted: Path, change: list[str]) -> None:
    words = ["apply", str(fitted), *models(place, "small", "small"), "--prompt", str(fitted)]
    assert "at least" in failed([*words, *change])


def test_a_missing_map_is_named(place: Path) -> None:
    assert "no such file" in failed(apply_words(place, place / "none", "small", "small"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--stride", "0"], "--stride 0"),
        (["--layers", "0"], "--layers 0"),
        (["--text", "/nowhere"], "--text /nowhere"),
        (["--out", "/"], "--out /"),
        (["--out", "/dev/null/x.map"], "--out /dev/null/x.map"),
        (["--threads", "0"], "--threads 0"),
        (["--device", "foo"], "--device foo"),
    ],
)
def test_what_can_be_seen_at_once_is_refused_before_a_model_is_read(
    place: Path, change: list[str], words: str
) -> None:
    given = {"--text": str(place / "text"), "--out": str(place / "refused.map")} | {change[0]: change[1]}
    with pytest.raises(InputError, match=words):
        main(["fit", "no-such-model", "no-such-model", *(word for pair in given.items() for word in pair)])
