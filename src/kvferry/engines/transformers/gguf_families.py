"""How each architecture of GGUF files is laid out, and what it is called in transformers.

Owns names of tensors, what llama.cpp's converter did to their numbers, and the configuration. Two things are
done to numbers: llama's query and key weights have the two rotary halves of a head interleaved, and Gemma's
norms, which a model multiplies by one more than what it keeps, have the one added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ModelError
from .gguf_fields import Fields

__all__ = ["FAMILIES", "Family", "Numbers", "configuration", "special_tokens"]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_BLOCK = {
    **_BLOCK,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_PATTERN = 6
"""Every sixth layer of a Gemma 3 sees everything; GGUF files do not say so."""
_GEMMA_SLIDING_THETA = 10_000.0
"""Of its other layers; GGUF files do not say that either."""
_LAYOUT = "5.0.0"
"""Whose layout of config.json this is. Where a large vocabulary comes without it, transformers warns of a
fault that Mistral's tokenizers had."""

Numbers = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture."""

    names: Mapping[str, str]
    """Names inside a layer, without the ending."""
    settings: Mapping[str, Any]
    """What its configuration says besides the sizes."""
    tokenizers: Sequence[tuple[str, str]]
    """Kinds of tokenizer that come with it, as GGUF calls them."""
    interleaved: bool = False
    norms_plus_one: bool = False
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)

    def place(self, fields: Fields, tensor: str, values: Numbers) -> tuple[str, Numbers]:
        """Name and numbers in transformers. Raises ModelError for a tensor that is not known."""
        if self.norms_plus_one and tensor.endswith("norm.weight"):
            values = values - np.float32(1)
        if tensor in self.top:
            return self.top[tensor], values
        parts = tensor.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in self.names:
            raise ModelError(
                f"{fields.source}: unknown tensor {tensor!r} in a GGUF file of {fields.architecture}"
            )
        if self.interleaved and parts[3] == "weight" and parts[2] in ("attn_q", "attn_k"):
            heads, kv_heads = _heads(fields)
            values = _unpermute(values, heads if parts[2] == "attn_q" else kv_heads)
        return f"model.layers.{parts[1]}.{self.names[parts[2]]}.{parts[3]}", values


FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        names=_BLOCK,
        settings={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        },
        tokenizers=(("gpt2", "smollm"),),
        interleaved=True,
    ),
    "qwen2": Family(
        names=_BLOCK,
        settings={
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "use_sliding_window": False,
            "transformers_version": _LAYOUT,
        },
        tokenizers=(("gpt2", "qwen2"),),
    ),
    "gemma3": Family(
        names=_GEMMA_BLOCK,
        settings={
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "transformers_version": _LAYOUT,
        },
        tokenizers=(("llama", "default"),),
        norms_plus_one=True,
    ),
}


def configuration(fields: Fields, family: Family, tied: bool) -> dict[str, Any]:
    """config.json. Raises ModelError where the file asks for what is not converted."""
    heads, kv_heads = _heads(fields)
    hidden = fields.number(fields.of("embedding_length"))
    width = int(fields.get(fields.of("attention.key_length")) or hidden // heads)
    if (scaling := fields.get(fields.of("rope.scaling.type"))) not in (None, "none"):
        raise ModelError(f"{fields.source}: rope scaling {scaling!r} is not converted")
    theta = float(fields.get(fields.of("rope.freq_base")) or 10_000.0)
    config = {
        **family.settings,
        "vocab_size": len(fields.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": fields.number(fields.of("feed_forward_length")),
        "num_hidden_layers": fields.number(fields.of("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "max_position_embeddings": fields.number(fields.of("context_length")),
        # GGUF keeps this in float32; seven digits give back what the author wrote (1e-05).
        "rms_norm_eps": float(f"{fields.need(fields.of('attention.layer_norm_rms_epsilon')):.7g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": tied,
        **special_tokens(fields),
        "dtype": "float32",
    }
    if fields.architecture == "gemma3":
        config |= _gemma(fields, theta, width)
    return config


def special_tokens(fields: Fields) -> dict[str, int]:
    """Ids of the beginning, the end and the padding."""
    return {
        "bos_token_id": fields.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.number("tokenizer.ggml.padding_token_id"),
    }


def _gemma(fields: Fields, theta: float, width: int) -> dict[str, Any]:
    layers = fields.number(fields.of("block_count"))
    return {
        "query_pre_attn_scalar": width,
        "sliding_window": fields.number(fields.of("attention.sliding_window")),
        "layer_types": [
            "sliding_attention" if (layer + 1) % _GEMMA_PATTERN else "full_attention"
            for layer in range(layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": _GEMMA_SLIDING_THETA},
        },
    }


def _heads(fields: Fields) -> tuple[int, int]:
    heads = fields.number(fields.of("attention.head_count"))
    return heads, int(fields.get(fields.of("attention.head_count_kv")) or heads)


def _unpermute(values: Numbers, heads: int) -> Numbers:
    """Undo the interleaving of the two rotary halves inside each head. `values` is [heads * dim, in]."""
    rows, width = values.shape
    halves = values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2)
    return np.ascontiguousarray(halves.reshape(rows, width))
