"""Tiny models of other architectures are written as GGUF, the way llama.cpp lays them out, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from kvferry.engines.transformers.capture import Captured
from kvferry.engines.transformers.gguf_folder import write_folder
from kvferry.errors import ModelError

LAYERS, HIDDEN = 6, 32
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
GEMMA_NAMES = {
    **NAMES,
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
QWEN_TOKENS = [*"abcde12", "Ġ", "Ċ", "ab", "Ġa", "é", "Ã", "©", "Ã©", "<|end|>", "<tool>", "[PAD17]"]
QWEN_TYPES = [*[1] * 15, 3, 4, 5]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
GEMMA_TOKENS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "\n",
    "  ",
    *BYTES,
    "ab",
    "▁a",
    "▁",
    "a",
    "b",
    "abb",
    "<h1>",
]
GEMMA_TYPES = [3, 3, 3, 3, 4, 4, *[6] * 256, *[1] * 6, 4]


def shake(model: Any) -> Any:
    """Random models have norms of one and biases of nought, which would hide what is done to them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module")
def qwen() -> Qwen2ForCausalLM:
    torch.manual_seed(3)
    return shake(
        Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(QWEN_TOKENS),
                hidden_size=HIDDEN,
                intermediate_size=256,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                num_key_value_heads=2,
                rms_norm_eps=1e-6,
                rope_parameters={"rope_type": "default", "rope_theta": 7000.0},
            )
        )
    )


@pytest.fixture(scope="module")
def gemma() -> Gemma3ForCausalLM:
    torch.manual_seed(4)
    return shake(
        Gemma3ForCausalLM(
            Gemma3TextConfig(
                vocab_size=len(GEMMA_TOKENS),
                hidden_size=HIDDEN,
                intermediate_size=48,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                num_key_value_heads=1,
                head_dim=16,
                query_pre_attn_scalar=16,
                sliding_window=4,
                rope_parameters={
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            )
        )
    )


def write(path: Path, model: Any, arch: str, tokenizer: tuple[str, str]) -> Path:
    config, gemma = model.config, arch == "gemma3"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6 if gemma else 7000.0)
    if gemma:
        writer.add_key_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model(tokenizer[0])
    writer.add_tokenizer_pre(tokenizer[1])
    writer.add_token_list(GEMMA_TOKENS if gemma else QWEN_TOKENS)
    writer.add_token_types(GEMMA_TYPES if gemma else QWEN_TYPES)
    writer.add_bos_token_id(2 if gemma else 15)
    writer.add_eos_token_id(1 if gemma else 15)
    writer.add_pad_token_id(0 if gemma else 15)
    if gemma:
        writer.add_unk_token_id(3)
    else:
        writer.add_token_merges(["a b", "Ġ a", "Ã ©"])
    writer.add_add_bos_token(gemma)
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        values = np.ascontiguousarray(tensor.numpy())
        if gemma and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if name in TOP:
            if name != "lm_head.weight" or not tied:
                writer.add_tensor(TOP[name], values)
            continue
        _, _, layer, rest = name.split(".", 3)
        inner, ending = rest.rsplit(".", 1)
        kind = (GEMMA_NAMES if gemma else NAMES)[inner]
        writer.add_tensor(f"blk.{layer}.{kind}.{ending}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def qwen_folder(qwen: Qwen2ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    source = write(folder.with_suffix(".gguf"), qwen, "qwen2", ("gpt2", "qwen2"))
    write_folder(source, folder, file_bytes=100_000)
    return folder


@pytest.fixture(scope="module")
def gemma_folder(gemma: Gemma3ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    write_folder(write(folder.with_suffix(".gguf"), gemma, "gemma3", ("llama", "default")), folder)
    return folder


def test_a_qwen_comes_back_bit_by_bit(qwen: Qwen2ForCausalLM, qwen_folder: Path) -> None:
    again = AutoModelForCausalLM.from_pretrained(qwen_folder).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in qwen.state_dict().items())


def test_a_qwen_computes_the_same(qwen: Qwen2ForCausalLM, qwen_folder: Path) -> None:
    again = AutoModelForCausalLM.from_pretrained(qwen_folder)
    ids = torch.tensor([[3, 4, 7, 5]])
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, qwen(ids).logits)


def test_large_weights_are_several_files(qwen_folder: Path) -> None:
    files = sorted(path.name for path in qwen_folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"


def test_the_index_names_every_file(qwen_folder: Path) -> None:
    index = json.loads((qwen_folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in qwen_folder.glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files


def test_a_gemma_computes_the_same(gemma: Gemma3ForCausalLM, gemma_folder: Path) -> None:
    """To rounding: one was added to its norms, and taken away."""
    again = AutoModelForCausalLM.from_pretrained(gemma_folder)
    ids = torch.tensor([[2, 264, 266, 267, 265, 266, 268, 262]])
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, gemma(ids).logits, atol=1e-5, rtol=1e-4)


def test_a_gemmas_layers_keep_their_windows(gemma_folder: Path) -> None:
    kinds = json.loads((gemma_folder / "config.json").read_text())["layer_types"]
    assert kinds == ["sliding_attention"] * 5 + ["full_attention"]


@pytest.mark.parametrize("which", ["qwen_folder", "gemma_folder"])
def test_what_was_converted_passes_the_first_gate(which: str, request: pytest.FixtureRequest) -> None:
    model = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(which))
    one = Captured(model.eval(), name=which, weights_revision="0", tokenizer_revision="0")
    assert one.check_strip() < 1e-5


def encode(folder: Path, text: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    return ids


def test_a_gemmas_text_begins_with_its_token(gemma_folder: Path) -> None:
    assert encode(gemma_folder, "a") == [2, GEMMA_TOKENS.index("a")]


def test_a_gemmas_merges_rank_as_its_tokens(gemma_folder: Path) -> None:
    """ab before ▁a, as their order says; then abb from its two parts."""
    assert encode(gemma_folder, "abb ab")[1:] == [GEMMA_TOKENS.index(token) for token in ("abb", "▁", "ab")]


def test_a_gemma_reads_what_it_has_no_token_for_as_bytes(gemma_folder: Path) -> None:
    assert encode(gemma_folder, "é")[1:] == [GEMMA_TOKENS.index("<0xC3>"), GEMMA_TOKENS.index("<0xA9>")]


@pytest.mark.parametrize("text", ["ab é\n a", "a  b", "abb<h1>a"])
def test_a_gemmas_text_comes_back(gemma_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(gemma_folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_spaces_in_a_row_are_one_token_of_a_gemma(gemma_folder: Path) -> None:
    assert encode(gemma_folder, "a  b")[1:] == [GEMMA_TOKENS.index(token) for token in ("a", "  ", "b")]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab a", ["ab", "Ġa"]),
        ("12", ["1", "2"]),
        ("e\u0301", ["Ã©"]),
        ("a<tool>b<|end|>", ["a", "<tool>", "b", "<|end|>"]),
    ],
)
def test_a_qwen_cuts_text_as_it_should(qwen_folder: Path, text: str, tokens: list[str]) -> None:
    assert encode(qwen_folder, text) == [QWEN_TOKENS.index(token) for token in tokens]


def test_another_familys_tokenizer_is_refused(qwen: Qwen2ForCausalLM, tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", qwen, "qwen2", ("gpt2", "smollm"))
    with pytest.raises(ModelError, match="only gpt2/qwen2"):
        write_folder(tmp_path / "x.gguf", tmp_path)


def test_k_quants_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One super-block of Q4_K by hand: scale 2, no minimum, nibbles that count."""
    from kvferry.engines.transformers import gguf_folder

    block = np.zeros(144, dtype=np.uint8)
    block[:2] = np.frombuffer(np.float16(2).tobytes(), dtype=np.uint8)
    block[4:8] = 1  # six-bit scales of the first four sub-blocks
    block[12:16] = 1  # and of the last four
    low, high = np.arange(32) % 16, 15 - np.arange(32) % 16
    block[16:] = np.tile(low | high << 4, 4)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", block[None], raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr(gguf_folder, "configuration", lambda *_: {})
    monkeypatch.setattr(gguf_folder, "special_tokens", lambda *_: {})
    monkeypatch.setattr(gguf_folder, "write_tokenizer", lambda *_: None)
    write_folder(tmp_path / "x.gguf", tmp_path)
    from safetensors.numpy import load_file

    found = load_file(tmp_path / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_array_equal(found[0], np.tile(np.concatenate([low, high]), 4) * 2.0)
