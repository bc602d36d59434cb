"""GGUF headers, written here byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import InputError, ModelError
from kvferry.model.gguf import read_header
from kvferry.model.gguf_config import from_gguf
from kvferry.model.layers import Attention, Latent
from kvferry.model.layouts.setup import Setup
from kvferry.model.open import open_model
from kvferry.model.size import size_of


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def item(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, text(value)
    kind = item(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(item(one)[1] for one in value)


def gguf(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]] | None = None) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors or {}), len(metadata))
    for key, value in metadata.items():
        kind, data = item(value)
        out += text(key) + struct.pack("<I", kind) + data
    for name, shape in (tensors or {}).items():
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", 0, 0)
    return out


def written(folder: Path, architecture: str, fields: dict[str, Any], **more: Any) -> Path:
    path = folder / "model.gguf"
    metadata = {"general.architecture": architecture, "vocabulary": ["token"] * 5000}
    metadata |= {f"{architecture}.{name}": value for name, value in fields.items()}
    path.write_bytes(gguf(metadata, **more))
    return path


BASE = {
    "block_count": 6,
    "embedding_length": 64,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "context_length": 4096,
}


def test_a_dense_model(tmp_path: Path) -> None:
    model = from_gguf(written(tmp_path, "llama", BASE))
    assert [layer.attention for layer in model.layers] == [
        Attention(kv_heads=2, key_width=8, value_width=8, query_heads=8)
    ] * 6
    assert (model.architecture, model.context) == ("llama", 4096)


def test_key_length_beats_the_derived_width(tmp_path: Path) -> None:
    model = from_gguf(
        written(tmp_path, "qwen3", {**BASE, "attention.key_length": 32, "attention.value_length": 16})
    )
    part = model.layers[0].attention
    assert isinstance(part, Attention)
    assert (part.key_width, part.value_width) == (32, 16)


def test_long_arrays_are_skipped(tmp_path: Path) -> None:
    assert "vocabulary" not in read_header(written(tmp_path, "llama", BASE)).metadata


def test_weights_are_counted_and_of_experts_those_in_use(tmp_path: Path) -> None:
    fields = {**BASE, "expert_count": 8, "expert_used_count": 2}
    path = written(
        tmp_path,
        "llama",
        fields,
        tensors={"token_embd.weight": (64, 100), "blk.0.ffn_up_exps.weight": (64, 32, 8)},
    )
    assert from_gguf(path).parameters == 6400 + 64 * 32 * 8 / 4


def test_draft_layers_hold_no_cache(tmp_path: Path) -> None:
    assert len(from_gguf(written(tmp_path, "glm4moe", {**BASE, "nextn_predict_layers": 1})).layers) == 5


def test_layers_slide_by_the_engines_period(tmp_path: Path) -> None:
    model = from_gguf(written(tmp_path, "gpt-oss", {**BASE, "attention.sliding_window": 128}))
    assert [layer.kind for layer in model.layers] == ["sliding", "full"] * 3


def test_layers_slide_as_the_file_says(tmp_path: Path) -> None:
    fields = {
        **BASE,
        "attention.sliding_window": 128,
        "attention.sliding_window_pattern": [True, True, False] * 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.shared_kv_layers": 2,
    }
    model = from_gguf(written(tmp_path, "gemma4", fields))
    assert [layer.kind for layer in model.layers] == [
        "sliding",
        "sliding",
        "full",
        "sliding",
        "shared",
        "shared",
    ]
    assert [
        layer.attention.key_width for layer in model.layers[:3] if isinstance(layer.attention, Attention)
    ] == [16, 16, 32]


def test_a_latent(tmp_path: Path) -> None:
    fields = {
        **BASE,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
    }
    part = from_gguf(written(tmp_path, "deepseek2", fields)).layers[0].attention
    assert part == Latent(rank=512, rope_width=64, heads=8, nope_width=128, value_width=128)


def test_gated_delta(tmp_path: Path) -> None:
    fields = {
        **BASE,
        "full_attention_interval": 3,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.inner_size": 4096,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 32,
    }
    model = from_gguf(written(tmp_path, "qwen35", fields))
    assert [layer.kind for layer in model.layers] == ["gdn", "gdn", "full"] * 2
    size = size_of(model, Setup(engine="llama.cpp"))
    assert [one.state_bytes for one in size.layers[:1]] == [3 * 8192 * 4 + 32 * 128 * 128 * 4]


def test_heads_by_layer(tmp_path: Path) -> None:
    fields = {**BASE, "attention.head_count_kv": [0, 2, 0, 2, 0, 2], "shortconv.l_cache": 3}
    assert [layer.kind for layer in from_gguf(written(tmp_path, "lfm2", fields)).layers] == [
        "short_conv",
        "full",
    ] * 3


def test_an_unknown_architecture(tmp_path: Path) -> None:
    path = written(tmp_path, "nonsense", BASE)
    with pytest.raises(ModelError, match="'nonsense' is not known here"):
        from_gguf(path)
    assert from_gguf(path, assume_dense=True).assumed


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="num_hidden_layers"):
        from_gguf(
            written(tmp_path, "llama", {name: value for name, value in BASE.items() if name != "block_count"})
        )


def test_the_magic_tells_it_from_a_config(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", BASE)
    assert open_model(str(path)).architecture == "llama"


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"GGML....")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_header(tmp_path / "x")


WHOLE = gguf({"general.architecture": "llama", **{f"llama.{name}": value for name, value in BASE.items()}})


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_an_error(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(WHOLE[:length])
    with pytest.raises(ModelError):
        read_header(path)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_damaged_file_is_an_error_or_another_model(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "model.gguf"
    path.write_bytes(WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :])
    try:
        size_of(from_gguf(path), Setup(engine="llama.cpp"))
    except InputError:
        return
