"""Which architectures are known, and what each fixes beyond its config's fields.

Owns the list. Most of a model is in the fields of its config, whatever it is called, and `patterns` and
`parts` read them for every model alike. What differs between architectures is only: whether a missing
head_dim may be taken as hidden_size / num_attention_heads (the class derives it) or not (it has a number of
its own), whether all heads have keys and values by construction, and which field must be there because
without it nothing says which layers are what. An architecture that is not here is not guessed at.

Adding one: a line here, and a tiny random model of it in `measure/size/tiny.py`, which compares what is read
with what the library really keeps.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["FAMILIES", "UNNAMED", "Family", "family_of"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What one architecture fixes."""

    own_width: bool = False
    """head_dim has a number of its own: missing means unknown, not hidden_size / num_attention_heads."""
    all_heads: bool = False
    """Every head has keys and values (MHA): the architecture has no field for fewer."""
    needs: tuple[str, ...] = ()
    """One of these must be there, or nothing says which layers are what."""
    every: int = 0
    """The n-th of n layers is full attention and the others slide, with no field that says so."""
    linear: Literal["lightning"] | None = None
    """The kind of its linear layers, where no field tells."""
    pure: bool = False
    """Whether every layer keeps a state, and none attention."""
    own_sliding_heads: bool = False
    """Sliding layers have a number of KV heads of their own, which must be there."""
    attentions: int = 1
    """Attention blocks in what the config counts as one layer."""
    parallel: bool = False
    """Whether every layer has attention and a state side by side."""


_DERIVED = Family()
_OWN = Family(own_width=True)
_ALL_HEADS = Family(all_heads=True)
_WINDOW = ("sliding_window",)
_TYPES = ("layer_types",)
_PATTERNED = ("layer_types", "sliding_window_pattern", "_sliding_window_pattern")
_INTERVAL = ("layer_types", "full_attention_interval")

_BY_FAMILY: dict[Family, str] = {
    _DERIVED: (
        "apertus arcee aria_text bitnet cohere deepseek diffllama dbrx emu3_text_model ernie4_5_moe "
        "ernie4_5_vl_moe_text exaone flex_olmo glm4_moe glm4v_text glm4v_moe_text glm_ocr_text granite "
        "granitemoe granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hyperclovax "
        "internlm2 internlm3 jais2 llama minicpm nanochat nemotron olmo olmo2 olmoe orion phi stablelm "
        "mimo bailing_moe chatglm qwen3_vl_moe_text qwen3_omni_moe_text step3_text "
        "openelm kimi_k25"
    ),
    _OWN: (
        "axk1 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_vl_v2 ernie4_5 gemma glm "
        "glm4 glm4_moe_lite glm_moe_dsa helium hy_v3 hy_v4 kimi_k2 minicpm3 minimax_m2 mistral4 "
        "paddleocr_vl_text qwen3_vl_text seed_oss solar_open youtu axk2"
    ),
    _ALL_HEADS: ("baichuan bloom biogpt codegen gpt2 gptj gpt_neox gpt_neox_japanese opt persimmon qwen mpt"),
    Family(needs=("multi_query",)): "gpt_bigcode falcon",
    # Those whose class slides by a number of its own where the field is absent.
    Family(needs=_WINDOW): ("mistral phi3 phimoe phi4_multimodal mixtral starcoder2 moshi"),
    Family(own_width=True, needs=_WINDOW): "ministral3",
    Family(needs=("use_sliding_window", "layer_types")): "qwen2 qwen2_moe qwen2_vl_text "
    "qwen2_5_vl_text qwen2_5_omni_text qwen2_vl qwen2_5_vl qwen3_moe smollm3 dots1",
    Family(own_width=True, needs=("use_sliding_window", "layer_types")): "qwen3",
    Family(every=2, own_width=True): "gemma2 vaultgemma",
    Family(own_width=True, needs=_PATTERNED): "gemma3_text cohere2_moe",
    Family(needs=_PATTERNED): ("cohere2 cohere_compass_text exaone4 exaone_moe olmo3 ministral"),
    Family(own_width=True, needs=_TYPES): (
        "gemma3n_text gemma4_text gemma4_unified_text gpt_oss laguna cwm mellum step3p5"
    ),
    Family(needs=_TYPES): "granite_swa granitemoe_swa",
    Family(own_width=True, needs=(*_TYPES, "global_attn_every_n_layers")): "afmoe",
    Family(own_width=True, needs=(*_TYPES, "no_rope_layers", "no_rope_layer_interval")): "llama4_text",
    Family(own_width=True, needs=(*_TYPES, "hybrid_layer_pattern"), own_sliding_heads=True): "mimo_v2_flash",
    Family(own_width=True, needs=_INTERVAL): "qwen3_next qwen3_5_text qwen3_5_moe_text",
    Family(needs=_INTERVAL): "olmo_hybrid",
    Family(own_width=True, needs=(*_TYPES, "linear_attn_config")): "kimi_linear",
    Family(needs=(*_TYPES, "attn_type_list"), linear="lightning"): "minimax minimax_text_01",
    Family(needs=("attn_layer_period",)): "jamba",
    Family(needs=("attn_layer_indices", *_TYPES)): "bamba",
    Family(needs=(*_TYPES, "layers_block_type")): "granitemoehybrid",
    Family(own_width=True, needs=("layers_block_type", "hybrid_override_pattern", *_TYPES)): "nemotron_h",
    Family(needs=("layers_block_type", "hybrid_layer_ids")): "zamba zamba2",
    Family(parallel=True): "falcon_h1",
    Family(needs=("full_attn_idxs", *_TYPES)): "lfm2 lfm2_moe",
    Family(needs=("block_types", "_block_types")): "recurrent_gemma",
    Family(needs=("block_configs",)): "nemotron-nas deci",
    Family(needs=("use_cla",)): "hunyuan",
    Family(pure=True): "mamba falcon_mamba mamba2",
    Family(attentions=2, own_width=True): "longcat_flash",
}

FAMILIES: dict[str, Family] = {name: family for family, names in _BY_FAMILY.items() for name in names.split()}
"""By model_type."""

UNNAMED = Family()
"""For a config that names no architecture: its fields alone decide."""

_WRAPPED = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm46v": "glm4v_text",
    "step3p7": "step3p5",
    "aria": "aria_text",
}
"""From the model_type of a model with several parts to that of its text part, where the part names none."""


def family_of(model_type: str) -> Family | None:
    """The family of a model_type; None for one that is not known."""
    return FAMILIES.get(_WRAPPED.get(model_type, model_type))
