"""What a config says, in the many ways in which configs say it; and what is an error."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.errors import InputError, ModelError
from kvferry.model.config import from_config, parse_config
from kvferry.model.families import FAMILIES
from kvferry.model.layers import Attention, Latent, Model
from kvferry.model.layouts.setup import ENGINES, Setup
from kvferry.model.open import open_model, preset_names
from kvferry.model.size import size_of

DENSE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
WINDOW = {**DENSE, "head_dim": 16, "sliding_window": 100}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4}


def kinds(**fields: Any) -> list[str]:
    return [layer.kind for layer in from_config(fields, "here").layers]


def first(model: Model) -> Attention:
    attention = model.layers[0].attention
    assert isinstance(attention, Attention)
    return attention


def test_explicit_head_dim_beats_the_derived_one() -> None:
    assert first(from_config({"model_type": "llama", **DENSE, "head_dim": 128}, "here")).key_width == 128


def test_a_derived_head_dim_is_hidden_size_over_heads() -> None:
    assert first(from_config({"model_type": "llama", **DENSE}, "here")).key_width == 8


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_key_value_heads", "num_attention_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = {"model_type": "llama", **DENSE}
    del fields[field]
    with pytest.raises(ModelError, match=field):
        from_config(fields, "here")


def test_no_default_of_a_class_stands_in_for_head_dim() -> None:
    with pytest.raises(ModelError, match="head_dim is missing"):
        from_config({"model_type": "qwen3", **DENSE, "use_sliding_window": False}, "here")


def test_no_default_of_a_class_stands_in_for_a_window() -> None:
    with pytest.raises(ModelError, match="sliding_window is missing"):
        from_config({"model_type": "mistral", **DENSE}, "here")


def test_no_default_of_a_class_stands_in_for_a_pattern() -> None:
    with pytest.raises(ModelError, match="layer_types"):
        from_config({"model_type": "gemma3_text", **WINDOW}, "here")


def test_a_window_of_an_unnamed_architecture_needs_a_pattern() -> None:
    with pytest.raises(ModelError, match="layer_types"):
        from_config(WINDOW, "here")


def test_a_null_window_is_none() -> None:
    assert kinds(model_type="mistral", **DENSE, sliding_window=None) == ["full"] * 4


def test_an_unknown_architecture_is_said_to_be_unknown() -> None:
    with pytest.raises(ModelError, match=r"'nonsense' is not known here.*--assume dense"):
        from_config({"model_type": "nonsense", **DENSE}, "here")


def test_an_assumption_is_marked() -> None:
    model = from_config({"model_type": "nonsense", **DENSE}, "here", assume_dense=True)
    assert model.assumed
    assert [layer.kind for layer in model.layers] == ["full"] * 4


def test_an_unknown_kind_of_layer_is_named_with_its_place() -> None:
    with pytest.raises(ModelError, match=r"layer_types\[1\] is 'quantum_attention'"):
        kinds(**DENSE, layer_types=["full_attention", "quantum_attention"] * 2)


def test_a_list_that_does_not_count_the_layers() -> None:
    with pytest.raises(ModelError, match="num_hidden_layers is 4, but its list of layers has 2"):
        kinds(**DENSE, layer_types=["full_attention"] * 2)


def test_a_list_in_words_is_refused() -> None:
    with pytest.raises(ModelError, match="must be a list"):
        kinds(**WINDOW, layer_types="2 sliding / 2 full")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}, "SFSF"),
        ({"model_type": "gemma2", **WINDOW}, "SFSF"),
        ({"model_type": "gemma3_text", **WINDOW, "sliding_window_pattern": 3}, "SSFS"),
        ({"model_type": "exaone4", **WINDOW, "sliding_window_pattern": "LLLG"}, "SSSF"),
        ({"model_type": "mistral", **WINDOW}, "SSSS"),
        ({"model_type": "qwen2", **WINDOW, "use_sliding_window": False}, "FFFF"),
        ({"model_type": "qwen2", **WINDOW, "use_sliding_window": True, "max_window_layers": 3}, "FFFS"),
        ({"model_type": "afmoe", **WINDOW, "global_attn_every_n_layers": 2}, "SFSF"),
        ({**DENSE, "head_dim": 8, "attention_chunk_size": 64, "no_rope_layers": [1, 1, 1, 0]}, "CCCF"),
        ({**DENSE, "head_dim": 8, "attention_chunk_size": 64, "no_rope_layer_interval": 2}, "CFCF"),
        ({**WINDOW, "hybrid_layer_pattern": [0, 1, 1, 0]}, "FSSF"),
        ({**DENSE, **MAMBA2, "attn_layer_indices": [2]}, "MMFM"),
        ({**DENSE, **MAMBA2, "layers_block_type": ["mamba", "attention", "mamba", "hybrid"]}, "MFMH"),
        ({**DENSE, **MAMBA2, "hybrid_override_pattern": "M-*E"}, "M-F-"),
        ({"model_type": "falcon_h1", **DENSE, **MAMBA2}, "HHHH"),
        ({**DENSE, **MAMBA2, "attn_layer_period": 4, "attn_layer_offset": 1}, "MFMM"),
        ({**DENSE, "conv_L_cache": 3, "full_attn_idxs": [0, 3]}, "LFFL".replace("LFFL", "FLLF")),
        ({**DENSE, **MAMBA2, "attention_layers": 1, "mamba_layers": 2}, "MFM-"),
        (
            {
                "block_configs": [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}],
                "num_attention_heads": 8,
                "hidden_size": 64,
            },
            "F-",
        ),
    ],
)
def test_forms_of_saying_which_layers_are_what(fields: dict[str, Any], expected: str) -> None:
    letters = {"full": "F", "sliding": "S", "chunked": "C", "mamba2": "M", "short_conv": "L", "none": "-"}
    letters["full+mamba2"] = "H"
    assert Counter(letters[kind] for kind in kinds(**fields)) == Counter(expected)
    if "mamba_layers" not in fields:
        assert "".join(letters[kind] for kind in kinds(**fields)) == expected


def test_searched_layers_have_heads_of_their_own() -> None:
    fields = {
        "block_configs": [{"attention": {"n_heads_in_group": 4}}, {"attention": {"n_heads_in_group": 2}}],
        "num_attention_heads": 8,
        "hidden_size": 64,
    }
    heads = [layer.attention.kv_heads for layer in from_config(fields, "here").layers]  # type: ignore[union-attr]
    assert heads == [2, 4]


def test_heads_given_as_a_list() -> None:
    model = from_config({**DENSE, "num_key_value_heads": [1, 2, 0, 4]}, "here")
    assert [layer.kind for layer in model.layers] == ["full", "full", "none", "full"]


def test_shared_layers_read_the_last_of_their_kind() -> None:
    model = from_config(
        {**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
        "here",
    )
    assert [layer.shares for layer in model.layers] == [None, None, 0, 1]


def test_cross_layer_attention_shares_in_groups() -> None:
    model = from_config({"model_type": "hunyuan", **DENSE, "use_cla": True, "cla_share_factor": 2}, "here")
    assert [layer.shares for layer in model.layers] == [None, 0, None, 2]


def test_a_global_head_is_read_only_where_keys_are_values() -> None:
    fields = {
        **WINDOW,
        "layer_types": ["full_attention"] * 4,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
    }
    assert first(from_config(fields, "here")).kv_heads == 1
    assert first(from_config({**fields, "attention_k_eq_v": False}, "here")).kv_heads == 2


def test_an_indexer_of_its_own_only_where_it_is_full() -> None:
    fields = {
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "index_topk": 4,
        "index_head_dim": 32,
        "indexer_types": ["full", "shared"],
    }
    parts = [layer.attention for layer in from_config(fields, "here").layers]
    assert [part.index_width for part in parts if isinstance(part, Latent)] == [32, None]


def test_the_text_part_of_a_model_with_several() -> None:
    outer = {"model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"num_hidden_layers": 9}}
    inner = {**WINDOW, "sliding_window_pattern": 2}
    model = from_config({**outer, "text_config": inner}, "here")
    assert [layer.kind for layer in model.layers] == ["sliding", "full"] * 2
    assert model.dtype == "bfloat16"


def test_a_checkpoint_with_scales_for_its_cache_says_so() -> None:
    model = from_config({**DENSE, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "here")
    assert any("8-bit KV cache" in note for note in model.notes)


def test_not_json() -> None:
    with pytest.raises(ModelError, match="not JSON"):
        parse_config(b"{", "here")


def test_not_an_object() -> None:
    with pytest.raises(ModelError, match="JSON object"):
        parse_config(b"[]", "here")


def test_a_number_of_layers_beyond_any_model() -> None:
    with pytest.raises(ModelError, match="num_hidden_layers"):
        from_config({**DENSE, "num_hidden_layers": 10**9}, "here")


def test_every_architecture_has_a_name_of_its_own() -> None:
    assert [name for name in FAMILIES if name != name.strip() or not name] == []


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_read_and_laid_out_by_every_engine(name: str) -> None:
    model = open_model(name)
    for engine in ENGINES:
        size = size_of(model, Setup(engine=engine, memory_bytes=80 * 2**30, context=32_768))
        assert size.growing_bytes_per_token + size.fixed_bytes_per_request > 0


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.lists(st.integers(-1, 5), max_size=4),
    st.dictionaries(st.sampled_from(["attention", "0", "head_dim"]), st.integers(-1, 9), max_size=2),
)


@settings(max_examples=300)
@given(st.sampled_from(preset_names()), st.data())
def test_a_damaged_config_is_an_error_of_ours(name: str, data: st.DataObject) -> None:
    from importlib.resources import files

    fields = msgspec.json.decode(files("kvferry.model.presets").joinpath(f"{name}.json").read_bytes())
    for field in data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2)):
        fields[field] = data.draw(VALUES)
    extra = st.sampled_from(
        [
            "indexer_types",
            "per_layer_config",
            "block_configs",
            "num_kv_shared_layers",
            "attn_config",
            "text_config",
        ]
    )
    for field in data.draw(st.lists(extra, max_size=1)):
        fields[field] = data.draw(VALUES)
    with contextlib.suppress(InputError):
        size_of(from_config(fields, "here"), Setup(memory_bytes=2**34, context=4096))
