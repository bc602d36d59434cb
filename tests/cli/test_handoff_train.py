"""`kvferry handoff train` and `agents` on tiny models of two families: what is written, and what is said."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import App

from kvferry.cli.handoff_train import agents, train
from kvferry.errors import FormatError, ModelError

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "safetensors"))), reason="needs the extra transformers"
)


def main(words: list[str]) -> int:
    app = App(name="handoff")
    app.command(train)
    app.command(agents)
    status: int = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return status


def save_words_llama(folder: Path) -> None:
    """A tiny Llama that reads whole words of the agents' documents."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from kvferry.measure.crossing.facts import fact_documents

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    sample = [one.text + one.restated for one in fact_documents(60, seed=1, side="test")]
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(sample, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny models with two tokenizers, and twelve documents."""
    from ..e2e.model import save_tiny_llama

    folder = tmp_path_factory.mktemp("train")
    save_tiny_llama(folder / "bytes", seed=1)
    save_words_llama(folder / "words")
    (folder / "text").mkdir()
    for at in range(12):
        words = [f"{(at * 7919 + word * word) % 9973}" for word in range(200)]
        (folder / "text" / f"{at}.txt").write_text(" ".join(words))
    return folder


def train_words(place: Path, out: Path, *more: str) -> list[str]:
    return [
        *("train", str(place / "bytes"), str(place / "words"), "--out", str(out)),
        *("--text", str(place / "text"), "--tokens", "300", "--calibration-tokens", "600"),
        *("--context-tokens", "32", "--suffix-tokens", "6", "--hold-back", "1", "--hold-back", "3"),
        *("--source-layers", "2", "--width", "16", "--blocks", "1", "--code-width", "4"),
        *("--held-out", "2", "--threads", "1", *more),
    ]


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
    assert found["trained_tokens"] >= 300
    assert found["settings"]["hold_back"] == [1, 3]
    other = "closed form" if found["training_gain"] > 0 else "trained, not kept"
    assert set(found["nll"]) == {"target", "mapped", other, "random", "none"}
    assert found["held_out_texts"] == 2
    assert not found["beats_controls"]
    made = open_cross_map(tmp_path / "map")
    assert made.digest() == found["digest"] == open_cross_map(trained).digest()


def test_a_training_out_of_time_goes_on_by_the_same_command(
    place: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.handoff.crossing.file import open_cross_map

    out = tmp_path / "map"
    assert main(train_words(place, out, "--time-limit", "1ms")) == 0
    assert "run the same command again to go on" in capsys.readouterr().out
    assert main(train_words(place, out)) == 0
    assert "going on from step 0" in capsys.readouterr().err
    assert open_cross_map(out).digest() == open_cross_map(trained).digest()


def test_agents_show_every_way(place: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["agents", str(place / "bytes"), str(place / "words"), "--map", str(trained), "--threads", "1"]
    assert main([*words, "--limit", "3", "--summary-tokens", "4"]) == 0
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
    assert main([*words, "--limit", "3", "--json"]) == 0
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
