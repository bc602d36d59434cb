"""`kvferry handoff agents` on tiny models of two families: all ways are shown, wrong options named first."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import App

from kvferry.cli.handoff_agents import agents
from kvferry.cli.handoff_train import train
from kvferry.errors import FormatError, InputError, ModelError

from .crossing_pair import save_pair, train_words

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "safetensors"))), reason="needs the extra transformers"
)


def main(words: list[str]) -> int:
    app = App(name="handoff")
    app.command(train)
    app.command(agents)
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


def test_agents_show_every_way(place: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["agents", str(place / "bytes"), str(place / "words"), "--map", str(trained), "--threads", "1"]
    assert main([*words, "--limit", "6", "--summary-tokens", "4"]) == 0
    said = capsys.readouterr().out
    for part in (
        "text",
        "summary",
        "mapped, compacted",
        "random",
        "none",
        "mapping: mapped - text",
        "hours of",
    ):
        assert part in said
    assert main([*words, "--limit", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in found["arms"]][:3] == ["text", "mapped", "compacted"]


def test_a_map_for_another_target_is_refused(place: Path, trained: Path) -> None:
    bytes_only = [str(place / "bytes")] * 2
    with pytest.raises(FormatError, match="the map's target is words"):
        main(["agents", *bytes_only, "--map", str(trained), "--threads", "1"])


def test_choices_that_begin_alike_are_refused(place: Path, tmp_path: Path) -> None:
    words = train_words(place, tmp_path / "map")
    words[2] = words[1]
    assert main(words) == 0
    with pytest.raises(ModelError, match="alike: they cannot be told apart"):
        main(["agents", words[1], words[2], "--map", str(tmp_path / "map"), "--threads", "1"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--map", "/nope"], "/nope: no such file"),
        (["--map", "CLOSED"], "a map of kind 'closed form'"),
        (["--map", "CLOSED", "--threads", "0"], "--threads 0"),
        (["--map", "CLOSED", "--device", "foo"], "--device foo"),
        (["--map", "CLOSED", "--dtype", "foo"], "--dtype foo"),
        (["--map", "CLOSED", "--limit", "1"], "limit 1: an interval needs 6"),
    ],
)
def test_a_wrong_option_is_named_before_a_model_is_read(words: list[str], told: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    closed = tmp_path / "closed.safetensors"
    save_file({"a": torch.zeros(1)}, closed, metadata={"format": "kvferry-map", "version": "1"})
    with pytest.raises(InputError, match=told):
        main(["agents", "/nowhere/a", "/nowhere/b", *(str(closed) if w == "CLOSED" else w for w in words)])
