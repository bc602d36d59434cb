"""The names that families give the same field, the usual one first."""

from __future__ import annotations

__all__ = ["HEADS", "HEAD_DIM", "HIDDEN", "KV_HEADS", "LAYER_COUNT"]

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_attention_groups",
    "multi_query_group_num",
    "num_kv_heads",
)
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_head", "dim_head")
HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
LAYER_COUNT = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "decoder_layers",
    "num_transformer_layers",
)
