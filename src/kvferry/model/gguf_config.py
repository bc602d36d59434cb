"""From the metadata of a GGUF file to the fields of a config.

Owns the translation of keys, and the periods of sliding layers that llama.cpp has in its code and not in the
file. The result goes through the same reader as a config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .config import from_config
from .gguf import GgufHeader, read_header
from .layers import Model

__all__ = ["from_gguf", "gguf_fields"]

_DENSE = (
    "apertus arcee baichuan bailingmoe bitnet bloom chatglm command-r dbrx deci deepseek dots1 "
    "ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2 gptneox granite granitemoe grok "
    "hunyuan-dense hunyuan-moe internlm2 jais llama mimo2 minicpm minimax-m2 mistral3 mpt nemotron "
    "olmo olmoe orion phi2 phi3 phimoe plm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl "
    "qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 xverse"
)
_LATENT = "deepseek2 glm-dsa minicpm3 kimi-linear"
_HYBRID = (
    "falcon-h1 granitehybrid jamba lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe qwen35 "
    "qwen35moe qwen3next"
)
_PERIODS = {
    "gemma2": 2,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
    "gemma3n": 5,
    "gemma3": 6,
    "gemma4": 0,
}
"""Every n-th layer is full attention; 0 where the file itself says which."""
_WITHOUT_WINDOW = ("phi3", "llama", "mistral3", "starcoder2", "qwen2", "qwen2moe", "qwen3", "qwen3moe")
"""Files of these may carry a window that llama.cpp does not use."""
_KNOWN = {*_DENSE.split(), *_LATENT.split(), *_HYBRID.split(), *_PERIODS}


def from_gguf(path: Path, *, assume_dense: bool = False) -> Model:
    """The model in a GGUF file. Raises `ModelError` as `read_header` and `from_config` do."""
    header = read_header(path)
    fields = gguf_fields(header, str(path), assume_dense=assume_dense)
    name = str(header.metadata["general.architecture"])
    return from_config(fields, str(path), assume_dense=assume_dense, architecture=name)


def gguf_fields(header: GgufHeader, source: str, *, assume_dense: bool = False) -> dict[str, Any]:
    """The metadata as a config's fields. Raises `ModelError` for an architecture that is not known."""
    found = header.metadata
    name = found.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{source}: general.architecture is missing in its metadata")
    if name not in _KNOWN and not assume_dense:
        raise ModelError(
            f"{source}: the architecture {name!r} is not known here, so what its layers keep is not known; "
            "with --assume dense the naive figure is computed and marked as assumed"
        )
    keys = {key.removeprefix(f"{name}."): value for key, value in found.items() if key.startswith(f"{name}.")}
    fields: dict[str, Any] = {
        "hidden_size": keys.get("embedding_length"),
        "num_attention_heads": _most(keys.get("attention.head_count")),
        "max_position_embeddings": keys.get("context_length"),
        "kvferry_active_parameters": _active(header, keys),
        # llama.cpp computes in float16 caches whatever the weights are.
        "dtype": "float16",
    }
    blocks = keys.get("block_count")
    if isinstance(blocks, int):
        fields["num_hidden_layers"] = blocks - int(keys.get("nextn_predict_layers") or 0)
    _attention(name, keys, fields)
    _states(name, keys, fields)
    _kinds(name, keys, fields)
    return {field: value for field, value in fields.items() if value is not None}


def _attention(name: str, keys: Mapping[str, Any], fields: dict[str, Any]) -> None:
    heads = keys.get("attention.head_count_kv")
    fields["num_key_value_heads"] = heads if heads else fields["num_attention_heads"]
    fields["head_dim"] = keys.get("attention.key_length")
    fields["v_head_dim"] = keys.get("attention.value_length")
    if (rank := keys.get("attention.kv_lora_rank")) is not None:
        rope = keys.get("rope.dimension_count")
        width = keys.get("attention.key_length_mla") or keys.get("attention.key_length")
        fields |= {"kv_lora_rank": rank, "qk_rope_head_dim": rope}
        fields["v_head_dim"] = keys.get("attention.value_length_mla") or keys.get("attention.value_length")
        if isinstance(width, int) and isinstance(rope, int):
            fields["qk_nope_head_dim"] = width - rope
        if (index := keys.get("attention.indexer.key_length")) is not None:
            fields |= {"index_head_dim": index, "index_topk": keys.get("attention.indexer.top_k")}
    fields["swa_head_dim"] = keys.get("attention.key_length_swa")
    fields["swa_v_head_dim"] = keys.get("attention.value_length_swa")
    fields["num_kv_shared_layers"] = keys.get("attention.shared_kv_layers")
    if name not in _WITHOUT_WINDOW:
        fields["sliding_window"] = keys.get("attention.sliding_window")


def _states(name: str, keys: Mapping[str, Any], fields: dict[str, Any]) -> None:
    inner, groups, heads = (
        keys.get("ssm.inner_size"),
        keys.get("ssm.group_count"),
        keys.get("ssm.time_step_rank"),
    )
    state, kernel = keys.get("ssm.state_size"), keys.get("ssm.conv_kernel")
    if (width := keys.get("kda.head_dim")) is not None:
        fields |= {
            "linear_num_heads": fields["num_attention_heads"],
            "linear_head_dim": width,
            "linear_conv_kernel_dim": kernel,
        }
    elif name.startswith(("qwen35", "qwen3next")):
        fields |= {
            "linear_num_value_heads": heads,
            "linear_num_key_heads": groups,
            "linear_key_head_dim": state,
            "linear_value_head_dim": inner // heads if inner and heads else None,
            "linear_conv_kernel_dim": kernel,
        }
    elif inner is not None:
        fields |= {"mamba_d_inner": inner, "mamba_d_state": state, "mamba_d_conv": kernel}
        if groups:
            fields |= {"mamba_n_groups": groups, "mamba_n_heads": heads}
            fields["mamba_d_head"] = inner // heads if heads else None
    fields["conv_L_cache"] = keys.get("shortconv.l_cache")


def _kinds(name: str, keys: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """layer_types, from per-layer heads, from a pattern in the file, or from llama.cpp's own period."""
    count = fields.get("num_hidden_layers")
    if not isinstance(count, int):
        return
    heads = keys.get("attention.head_count_kv")
    recurrent = "mamba_d_inner" in fields or "linear_num_heads" in fields
    if name == "falcon-h1":
        fields["layer_types"] = ["hybrid"] * count
    elif name in ("mamba", "mamba2"):
        fields["layer_types"] = ["linear"] * count
        fields["num_key_value_heads"] = None
    elif isinstance(heads, list) and 0 in heads:
        other = "conv" if fields["conv_L_cache"] is not None else "linear" if recurrent else "none"
        kinds = ["full" if one else other for one in heads[:count]]
        if name.startswith("nemotron_h"):
            # Feed-forward layers have a width of their own; recurrent ones have none.
            widths = keys.get("feed_forward_length")
            if isinstance(widths, list):
                kinds = [
                    "none" if kind != "full" and wide else kind
                    for kind, wide in zip(kinds, widths, strict=False)
                ]
        fields["layer_types"] = kinds
        fields["num_key_value_heads"] = max(heads)
    elif (interval := keys.get("full_attention_interval")) is not None:
        fields["full_attention_interval"] = interval
    elif name.startswith(("qwen35", "qwen3next")):
        raise ModelError(f"{name}.full_attention_interval is missing in the metadata")
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        fields["layer_types"] = ["sliding" if slides else "full" for slides in pattern[:count]]
    elif fields.get("sliding_window"):
        period = pattern if isinstance(pattern, int) and pattern > 1 else _PERIODS.get(name)
        if not period:
            raise ModelError(
                f"{name}.attention.sliding_window_pattern is missing in the metadata: which layers slide?"
            )
        fields["layer_types"] = ["full" if (i + 1) % period == 0 else "sliding" for i in range(count)]


def _most(value: Any) -> Any:
    return max(value) if isinstance(value, list) and value else value


def _active(header: GgufHeader, keys: Mapping[str, Any]) -> float | None:
    """Weights that take part in one token: of stacked experts, those that are used."""
    if not header.tensors:
        return None
    experts, used = keys.get("expert_count"), keys.get("expert_used_count")
    share = used / experts if experts and used else 1.0
    return sum(
        math.prod(shape) * (share if "_exps" in name else 1.0) for name, shape in header.tensors.items()
    )
