"""From what the user wrote to a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.errors import ModelError
from kvferry.model.open import open_model, preset_names

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 8,
}


def test_a_file_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert open_model(str(tmp_path)).layers == open_model(str(tmp_path / "config.json")).layers


def test_a_preset_in_any_case() -> None:
    assert open_model("Qwen3-8B") == open_model("qwen3-8b")


def test_a_preset_knows_its_weights() -> None:
    assert open_model("qwen3-8b").parameters == 8.2e9


def test_a_name_that_is_none() -> None:
    with pytest.raises(ModelError, match="did you mean 'qwen3-8b'"):
        open_model("qwen3-8bb")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_model(str(tmp_path))


def test_presets_are_sorted() -> None:
    assert preset_names() == sorted(preset_names())
    assert "gpt-oss-120b" in preset_names()
