"""Turn a llama-family GGUF file into a Hugging Face folder with float32 safetensors.

The dequantised float32 values are the model: two replicas that convert the same file get the same bits.
Knows nothing of where the file came from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import MissingExtra, ModelError

__all__ = ["write_folder"]

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF token types that are matched as a whole: control tokens are special, user-defined ones are text."""

_LAYER_NAMES = {
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
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def write_folder(source: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of the GGUF file `source` into the empty `folder`.

    Raises ModelError for a file that is no llama-family GGUF with a byte-level BPE tokenizer.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra("reading a packaged model", "transformers") from error
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError) as error:
        raise ModelError(f"{source}: not a readable GGUF file: {error}") from error
    fields = _Fields(source, reader.fields)
    if (family := fields.text("general.architecture")) != "llama":
        raise ModelError(f"{source}: GGUF architecture {family!r}; only 'llama' can be converted")
    _write_weights(fields, reader.tensors, gguf.dequantize, folder / "model.safetensors")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(fields, tied))
    special = {
        "bos_token_id": fields.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.number("tokenizer.ggml.padding_token_id"),
    }
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(fields, folder)


class _Fields:
    """The metadata of one file; a missing field is named together with the file."""

    def __init__(self, source: Path, fields: Any) -> None:
        self.source = source
        self._fields = fields

    def get(self, name: str) -> Any:
        field = self._fields.get(name)
        return None if field is None else field.contents()

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ModelError(f"{self.source}: the GGUF metadata has no {name}")
        return value

    def text(self, name: str) -> str:
        return str(self.need(name))

    def number(self, name: str) -> int:
        return int(self.need(name))


def _config(fields: _Fields, tied: bool) -> dict[str, Any]:
    heads = fields.number("llama.attention.head_count")
    hidden = fields.number("llama.embedding_length")
    width = fields.get("llama.attention.key_length") or hidden // heads
    if (scaling := fields.get("llama.rope.scaling.type")) not in (None, "none"):
        raise ModelError(f"{fields.source}: rope scaling {scaling!r} is not converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": fields.number("llama.feed_forward_length"),
        "num_hidden_layers": fields.number("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv") or heads),
        "head_dim": int(width),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": fields.number("llama.context_length"),
        # GGUF keeps this in float32; seven digits give back what the author wrote (1e-05).
        "rms_norm_eps": float(f"{fields.need('llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(fields.get("llama.rope.freq_base") or 10_000.0),
        },
        "tie_word_embeddings": tied,
        "bos_token_id": fields.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.number("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _write_weights(fields: _Fields, tensors: Any, dequantize: Any, path: Path) -> None:
    from safetensors.numpy import save_file

    heads = {
        "attn_q": fields.number("llama.attention.head_count"),
        "attn_k": int(fields.get("llama.attention.head_count_kv") or 0)
        or fields.number("llama.attention.head_count"),
    }
    weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    for tensor in tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name in _TOP_NAMES:
            weights[_TOP_NAMES[tensor.name]] = values
            continue
        parts = tensor.name.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER_NAMES:
            raise ModelError(f"{fields.source}: unknown tensor {tensor.name!r} in a llama GGUF file")
        if parts[2] in heads and parts[3] == "weight":
            values = _unpermute(values, heads[parts[2]])
        weights[f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"] = values
    save_file(weights, path, metadata={"format": "pt"})


def _unpermute(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo GGUF's interleaving of the two rotary halves inside each head. `values` is [heads * dim, in]."""
    rows, width = values.shape
    halves = values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2)
    return np.ascontiguousarray(halves.reshape(rows, width))


def _write_tokenizer(fields: _Fields, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    model, pre = fields.text("tokenizer.ggml.model"), fields.text("tokenizer.ggml.pre")
    if (model, pre) != ("gpt2", "smollm"):
        raise ModelError(f"{fields.source}: tokenizer {model}/{pre} is not converted; only gpt2/smollm is")
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")
    types: list[int] = fields.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in fields.need("tokenizer.ggml.merges")]
    unknown = tokens[fields.number("tokenizer.ggml.unknown_token_id")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown))
    # A digit is a word of its own; the rest is split by the GPT-2 pattern of ByteLevel.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    typed = list(zip(tokens, types, strict=True))
    control = [AddedToken(token, special=True) for token, kind in typed if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens([AddedToken(token) for token, kind in typed if kind == _USER_DEFINED])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields.number("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[fields.number("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[fields.number("tokenizer.ggml.padding_token_id")],
        "unk_token": unknown,
        "model_max_length": fields.number("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token")),
    }
    if (template := fields.get("tokenizer.chat_template")) is not None:
        settings["chat_template"] = template
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
