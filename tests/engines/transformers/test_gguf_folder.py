"""A tiny llama is written as GGUF, the way llama.cpp lays it out, and must come back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from kvferry.engines.transformers.gguf_folder import write_folder
from kvferry.errors import ModelError

HEADS, KV_HEADS, HIDDEN = 4, 2, 32
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "1", "2", "ab", "Ġ", "<think>"]
TYPES = [3, 3, 3, 1, 1, 1, 1, 1, 1, 4]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=8,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def interleave(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    rows, width = values.shape
    return values.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


@pytest.fixture(scope="module")
def source(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write(path, model)
    return path


def write(path: Path, model: LlamaForCausalLM, arch: str = "llama", pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name == "lm_head.weight":
            continue
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            kind = NAMES[rest.removesuffix(".weight")]
            if kind in ("attn_q", "attn_k"):
                values = interleave(values, HEADS if kind == "attn_q" else KV_HEADS)
            writer.add_tensor(f"blk.{layer}.{kind}.weight", np.ascontiguousarray(values))
        else:
            top = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
            }
            writer.add_tensor(top[name], values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("folder")
    write_folder(source, made)
    return made


def test_the_weights_come_back_bit_by_bit(folder: Path, model: LlamaForCausalLM) -> None:
    again = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_the_converted_model_computes_the_same(folder: Path, model: LlamaForCausalLM) -> None:
    again = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[3, 4, 7, 5]])
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_merges_are_kept(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("ab").ids == [7]


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("12").ids == [5, 6]


def test_control_tokens_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a</s>").ids == [3, 2]


def test_control_tokens_are_left_out_of_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([3, 2]) == "a"


def test_user_defined_tokens_stay_in_the_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a<think>").ids) == "a<think>"


def test_another_architecture_is_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", model, arch="gemma2")
    with pytest.raises(ModelError, match="'gemma2'"):
        write_folder(tmp_path / "x.gguf", tmp_path)


def test_another_tokenizer_is_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", model, pre="qwen2")
    with pytest.raises(ModelError, match="gpt2/qwen2"):
        write_folder(tmp_path / "x.gguf", tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing at all, not even long")
    with pytest.raises(ModelError, match="not a readable GGUF"):
        write_folder(tmp_path / "x.gguf", tmp_path)
