"""Whole prefills out of real model classes, and back: nothing shifts, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma3TextConfig,
    LlamaConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from kvferry.engines.transformers.capture import Captured, check_computing, open_captured, restore
from kvferry.errors import ModelError, UsageError
from kvferry.handoff.mapping.rope import apply_rope, strip_rope
from kvferry.handoff.mapping.shapes import LayerKv, Prefill

WINDOW, VOCABULARY = 16, 199
PROMPT, REST = [(7 * at) % VOCABULARY for at in range(50)], [5, 9, 150, 3]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2, key bias": lambda: Qwen2Config(**SIZES),
    "qwen3, k-norm": lambda: Qwen3Config(**SIZES, head_dim=16),
    "olmo2, k-norm over heads": lambda: Olmo2Config(**SIZES),
    "phi3, fused and partial": lambda: Phi3Config(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "llama3 scaling": lambda: LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn scaling": lambda: LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "gemma3, windows": lambda: Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def captured(config: Any, dtype: torch.dtype = torch.float32) -> Captured:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    with torch.no_grad():
        for part in model.parameters():
            # Biases and norms begin as nothing: a test that leaves them so proves nothing of them.
            if part.ndim == 1:
                part.add_(0.5 * torch.randn_like(part))
    return Captured(model.train(False), name="tiny", weights_revision="1", tokenizer_revision="t")


@pytest.fixture(scope="module")
def gemma() -> Captured:
    return captured(CONFIGS["gemma3, windows"]())


@torch.inference_mode()
def logits(model: Any, cache: Any, ids: Sequence[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits[0]


def native(model: Any) -> Any:
    cache = DynamicCache(config=model.config)
    logits(model, cache, PROMPT)
    return cache


@pytest.mark.parametrize("name", CONFIGS)
def test_stripped_keys_are_the_model_s_own_before_it_turns_them(name: str) -> None:
    assert captured(CONFIGS[name]()).strip_error() < 1e-5


def test_in_bfloat16_rounding_is_all_that_is_left() -> None:
    assert captured(CONFIGS["qwen3, k-norm"](), torch.bfloat16).check_strip() < 0.02


def test_a_rope_that_was_misread_is_refused() -> None:
    model = captured(CONFIGS["llama"]())
    model.config.rope_parameters["rope_theta"] = 5e5
    wrong = Captured(model.model, name="tiny", weights_revision="1", tokenizer_revision="t")
    with pytest.raises(ModelError, match="not understood"):
        wrong.check_strip()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_native_cache_injected_again_gives_equal_logits(name: str) -> None:
    one = captured(CONFIGS[name]())
    again = restore(one.model, one.prefill(PROMPT).layers, len(PROMPT))
    expected = logits(one.model, native(one.model), REST)
    torch.testing.assert_close(logits(one.model, again, REST), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3, windows"])
def test_stripped_and_turned_again_it_still_does(name: str) -> None:
    one = captured(CONFIGS[name]())
    found = one.prefill(PROMPT)
    layers = [
        LayerKv(
            apply_rope(strip_rope(layer.keys, shape.rope, found.positions), shape.rope, found.positions),
            layer.values,
        )
        for layer, shape in zip(found.layers, one.kv.layers, strict=True)
    ]
    again = restore(one.model, layers, len(PROMPT))
    expected = logits(one.model, native(one.model), REST)
    torch.testing.assert_close(logits(one.model, again, REST), expected, atol=1e-3, rtol=1e-3)


def test_a_sliding_layer_s_own_cache_has_lost_all_but_its_window(gemma: Captured) -> None:
    held = [layer.keys.shape[-2] for layer in native(gemma.model).layers]
    assert held == [WINDOW - 1, len(PROMPT), WINDOW - 1]


def test_capture_during_the_prefill_keeps_every_position(gemma: Captured) -> None:
    assert [layer.keys.shape[1] for layer in gemma.prefill(PROMPT).layers] == [len(PROMPT)] * 3


def test_injecting_what_the_window_kept_shifts_what_follows(gemma: Captured) -> None:
    """The trap: a cache filled from another cache's tensors believes that the prompt began at its window."""
    from_cache = native(gemma.model)
    naive = DynamicCache(config=gemma.model.config)
    for place, layer in zip(naive.layers, from_cache.layers, strict=True):
        place.update(layer.keys, layer.values)
    assert naive.layers[0].get_seq_length() == WINDOW - 1
    expected = logits(gemma.model, native(gemma.model), REST)
    assert float((logits(gemma.model, naive, REST) - expected).abs().max()) > 0.1


def test_restoring_gives_the_window_and_the_count_of_all(gemma: Captured) -> None:
    cache = restore(gemma.model, gemma.prefill(PROMPT).layers, len(PROMPT))
    assert [layer.keys.shape[-2] for layer in cache.layers] == [WINDOW - 1, len(PROMPT), WINDOW - 1]
    assert [layer.get_seq_length() for layer in cache.layers] == [len(PROMPT)] * 3


def test_restoring_from_a_window_is_refused(gemma: Captured) -> None:
    kept = [LayerKv(layer.keys[0], layer.values[0]) for layer in native(gemma.model).layers]
    with pytest.raises(ModelError, match=f"layer 0 holds {WINDOW - 1} of {len(PROMPT)}"):
        restore(gemma.model, kept, len(PROMPT))


def test_each_layer_is_stripped_with_its_own_theta(gemma: Captured) -> None:
    thetas = [shape.rope.theta for shape in gemma.kv.layers]
    assert thetas[0] == thetas[2] != thetas[1]


def test_windows_are_described(gemma: Captured) -> None:
    assert [shape.window for shape in gemma.kv.layers] == [WINDOW, None, WINDOW]


def test_a_prompt_at_an_offset_has_the_same_keys_unturned() -> None:
    one = captured(CONFIGS["llama"]())
    near, far = one.prefill(PROMPT), one.prefill(PROMPT, offset=400)

    def plain(found: Prefill) -> torch.Tensor:
        return strip_rope(found.layers[2].keys, one.kv.layers[2].rope, found.positions)

    assert far.positions[0] == 400
    torch.testing.assert_close(plain(far), plain(near), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen3, k-norm", "gemma3, windows"])
def test_queries_attend_to_captured_kv_as_the_model_does(name: str) -> None:
    from kvferry.measure.quality.attention import Witness

    one = captured(CONFIGS[name]())
    found = one.prefill(PROMPT, queries=True)
    with Witness() as witness:
        one.prefill(PROMPT)
    at = torch.arange(len(PROMPT))
    for query, scale, layer, shape, call in zip(
        found.queries, found.scales, found.layers, one.kv.layers, witness.calls, strict=True
    ):
        seen = at[None] <= at[:, None]
        if shape.window is not None:
            seen &= at[None] > at[:, None] - shape.window
        keys, values = (part.repeat_interleave(2, 0)[None] for part in (layer.keys, layer.values))
        output = torch.nn.functional.scaled_dot_product_attention(
            query[None], keys, values, attn_mask=seen, scale=scale
        )
        torch.testing.assert_close(output, call.output, atol=1e-4, rtol=1e-4)


def test_queries_are_kept_only_when_asked_for(gemma: Captured) -> None:
    assert (len(gemma.prefill(PROMPT).queries), len(gemma.prefill(PROMPT, queries=True).queries)) == (0, 3)


def test_layers_that_are_no_attention_are_refused() -> None:
    model = captured(CONFIGS["llama"]()).model
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        Captured(model, name="tiny", weights_revision="1", tokenizer_revision="t")


def test_a_folder_is_opened_with_its_digests(tiny_folder: Path) -> None:
    one = open_captured(tiny_folder, name="tiny")
    assert (one.kv.name, len(one.kv.weights_revision), len(one.kv.tokenizer)) == ("tiny", 64, 64)
    assert one.encode("ab") == one.tokenizer("ab")["input_ids"]


def test_its_position_field_is_that_of_its_namespace(tiny_folder: Path, runner: Any) -> None:
    from kvferry.keys import canonical_text

    one = open_captured(tiny_folder)
    fields = runner.namespace_fields()
    assert one.kv.position == canonical_text(fields["position"])
    assert (one.kv.weights_revision, one.kv.tokenizer) == (fields["weights_revision"], fields["tokenizer"])


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_captured(tmp_path)


@pytest.mark.real_model
def test_the_packaged_model_passes_the_first_gate() -> None:
    from kvferry.config import cache_dir
    from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model

    one = open_captured(resolve_model(DEFAULT_MODEL, cache_dir()), name=DEFAULT_MODEL)
    assert one.check_strip() < 1e-5
    ids = one.encode("def merge(left, right):\n    merged = []\n    while left and right:\n" * 3)
    again = restore(one.model, one.prefill(ids).layers, len(ids))
    expected = DynamicCache(config=one.model.config)
    logits(one.model, expected, ids)
    torch.testing.assert_close(
        logits(one.model, again, REST), logits(one.model, expected, REST), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "foo"}, "--dtype foo"),
        ({"threads": 0}, "--threads 0"),
        ({"device": "foo"}, "--device foo"),
        ({"device": "meta"}, "--device meta"),
        ({"device": "cuda:99"}, "--device cuda:99"),
    ],
)
def test_what_nothing_can_be_computed_with_is_refused_before_a_folder_is_read(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_computing(**options)
    with pytest.raises(UsageError, match=said):
        open_captured(tmp_path / "nothing", **options)
