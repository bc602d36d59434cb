"""Frequencies and turning against transformers' own rotary code, for every scaling that it knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GlmConfig,
    LlamaConfig,
    Phi3Config,
)
from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as cohere_turn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as glm_turn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_turn
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as phi3_turn

from kvferry.handoff.mapping.rope import KINDS, Rope, apply_rope, strip_rope
from kvferry.handoff.mapping.ropes import ropes_of

WIDTH = 32
HALF = WIDTH // 2
TABLES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "beta_fast": 16.0,
        "original_max_position_embeddings": 64,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
POSITIONS = {"inside": torch.arange(40), "beyond": torch.arange(8000, 8040)}


def llama(table: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=WIDTH * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=WIDTH,
        num_hidden_layers=1,
        max_position_embeddings=256,
        rope_parameters=dict(table),
    )


def phi3(length: int = 64) -> Phi3Config:
    return Phi3Config(
        hidden_size=WIDTH * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
        pad_token_id=0,
        max_position_embeddings=256,
        original_max_position_embeddings=length,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + 0.1 * i for i in range(12)],
            "long_factor": [2.0 + 0.3 * i for i in range(12)],
        },
    )


def keys(tokens: int) -> torch.Tensor:
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(1))


def turned_by(
    rotary: Any, turn: Any, plain: torch.Tensor, positions: torch.Tensor, **options: Any
) -> torch.Tensor:
    cos, sin = rotary(plain[None], positions[None], **options)
    return turn(plain[None], plain[None], cos, sin)[1][0]


@pytest.mark.parametrize("where", POSITIONS)
@pytest.mark.parametrize("name", TABLES)
def test_applying_is_what_transformers_does(name: str, where: str) -> None:
    config, positions = llama(TABLES[name]), POSITIONS[where]
    plain = keys(40)
    theirs = turned_by(LlamaRotaryEmbedding(config), llama_turn, plain, positions)
    (rope,) = ropes_of(config.to_dict())
    torch.testing.assert_close(apply_rope(plain, rope, positions), theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("where", POSITIONS)
@pytest.mark.parametrize("name", TABLES)
def test_stripping_gives_back_what_transformers_turned(name: str, where: str) -> None:
    config, positions = llama(TABLES[name]), POSITIONS[where]
    plain = keys(40)
    theirs = turned_by(LlamaRotaryEmbedding(config), llama_turn, plain, positions)
    (rope,) = ropes_of(config.to_dict())
    torch.testing.assert_close(strip_rope(theirs, rope, positions), plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("where", POSITIONS)
def test_longrope_turns_a_part_of_the_head_by_the_factors_of_the_length(where: str) -> None:
    config, positions = phi3(), POSITIONS[where]
    plain = keys(40)
    theirs = turned_by(Phi3RotaryEmbedding(config), phi3_turn, plain, positions)
    (rope,) = ropes_of(config.to_dict())
    assert (rope.kind, rope.rotated) == ("longrope", 24)
    torch.testing.assert_close(apply_rope(plain, rope, positions), theirs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(strip_rope(theirs, rope, positions), plain, atol=1e-6, rtol=1e-6)


def test_partial_rotation_of_neighbouring_numbers() -> None:
    config = GlmConfig(
        hidden_size=WIDTH * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=WIDTH,
        num_hidden_layers=1,
        pad_token_id=0,
    )
    positions, plain = torch.arange(100, 140), keys(40)
    theirs = turned_by(GlmRotaryEmbedding(config), glm_turn, plain, positions)
    (rope,) = ropes_of(config.to_dict())
    assert (rope.interleaved, rope.rotated) == (True, HALF)
    torch.testing.assert_close(apply_rope(plain, rope, positions), theirs, atol=1e-6, rtol=1e-6)


def test_whole_rotation_of_neighbouring_numbers() -> None:
    config = CohereConfig(
        hidden_size=WIDTH * 2, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1
    )
    positions, plain = torch.arange(100, 140), keys(40)
    theirs = turned_by(CohereRotaryEmbedding(config), cohere_turn, plain, positions)
    (rope,) = ropes_of(config.to_dict())
    torch.testing.assert_close(strip_rope(theirs, rope, positions), plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("layer", "kind", "theta"), [(0, "sliding_attention", 1e4), (1, "full_attention", 1e6)]
)
def test_each_layer_has_its_own_theta(layer: int, kind: str, theta: float) -> None:
    config = Gemma3TextConfig(
        hidden_size=WIDTH * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=WIDTH,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    )
    positions, plain = torch.arange(300, 340), keys(40)
    theirs = turned_by(Gemma3RotaryEmbedding(config), llama_turn, plain, positions, layer_type=kind)
    rope = ropes_of(config.to_dict())[layer]
    assert rope.theta == theta
    torch.testing.assert_close(strip_rope(theirs, rope, positions), plain, atol=1e-6, rtol=1e-6)


def rope(kind: str) -> Rope:
    factors = tuple(1.0 + i / 7 for i in range(HALF // 2))
    return Rope(
        kind=kind,
        width=WIDTH,
        rotated=WIDTH if kind == "proportional" else HALF,
        max_length=64,
        original_length=64,
        turning_pairs=5,
        factor=4.0,
        attention_factor=1.3 if kind in ("yarn", "longrope") else 1.0,
        short_factors=factors,
        long_factors=factors[::-1],
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 100_000), seed=st.integers(0, 99))
def test_stripping_undoes_applying(kind: str, start: int, seed: int) -> None:
    plain = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(start, start + 7)
    there = apply_rope(plain, rope(kind), positions)
    torch.testing.assert_close(strip_rope(there, rope(kind), positions), plain, atol=1e-6, rtol=1e-6)


def test_stripping_undoes_what_a_model_rounded_to_bfloat16() -> None:
    plain, positions = keys(50), torch.arange(500, 550)
    there = apply_rope(plain, rope("default"), positions, rounded_to=torch.bfloat16)
    back = strip_rope(there, rope("default"), positions, rounded_to=torch.bfloat16)
    torch.testing.assert_close(back, plain, atol=1e-6, rtol=1e-6)


def test_a_batch_of_sequences_has_positions_of_its_own() -> None:
    plain = keys(20)
    positions = torch.cat([torch.arange(10), torch.arange(500, 510)])
    together = apply_rope(plain, rope("default"), positions)
    apart = [
        apply_rope(plain[:, part], rope("default"), positions[part]) for part in (slice(10), slice(10, 20))
    ]
    torch.testing.assert_close(together, torch.cat(apart, dim=1))


def test_keys_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="width 32"):
        strip_rope(torch.zeros(1, 4, 8), rope("default"), torch.arange(4))
