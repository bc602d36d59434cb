"""Configurations are read as they are spelt, and what is not understood is refused."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import SmolLM3Config

from kvferry.errors import ModelError
from kvferry.handoff.mapping.ropes import ropes_of


def test_layers_without_rope_are_left_alone() -> None:
    config = SmolLM3Config(num_hidden_layers=4, no_rope_layer_interval=4)
    kinds = [rope.kind for rope in ropes_of(config.to_dict())]
    assert kinds == ["default", "default", "default", "none"]


def test_older_files_name_theta_and_scaling_apart() -> None:
    config = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 256,
        "rope_theta": 2e4,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    (rope,) = ropes_of(config)
    assert (rope.kind, rope.theta, rope.factor, rope.width) == ("linear", 2e4, 2.0, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}, "axial"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 2]}}, "three dimensions"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], words: str) -> None:
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 64}
    with pytest.raises(ModelError, match=words):
        ropes_of({**config, **change})
