"""The naive figure, its factor, and why it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.model.config import from_config
from kvferry.model.layouts.setup import Setup
from kvferry.model.open import open_model
from kvferry.model.size import Size, size_of


def size(name: str, **setup: Any) -> Size:
    return size_of(open_model(name), Setup(**setup))


def test_it_is_right_for_a_dense_model() -> None:
    found = size("llama-3.1-8b")
    assert (found.naive_factor, found.naive_reasons) == (1.0, ())


@pytest.mark.parametrize(
    ("name", "factor", "reason"),
    [
        ("qwen3.5-35b-a3b", 4.0, "30 of 40 layers keep a state of fixed size"),
        ("gpt-oss-20b", 2.0, "12 of 24 layers stop growing at 128 tokens"),
        ("gemma-4-e4b", 5.25, "18 layers read another layer's cache"),
        ("llama-nemotron-ultra-253b", 162 / 64, "98 of 162 layers have no attention"),
        ("deepseek-r1", 56.9, "MLA keeps one latent of 512 + 64 numbers"),
        ("gemma-4-31b", 12.0, "10 layers have 4 KV heads of width 512"),
        ("deepseek-v3.2", 51.0, "a sparse indexer adds 132 bytes"),
    ],
)
def test_each_way_in_which_it_is_wrong(name: str, factor: float, reason: str) -> None:
    found = size(name)
    assert found.naive_factor == pytest.approx(factor, rel=0.01)
    assert any(reason in one for one in found.naive_reasons)


def test_a_head_dim_that_is_not_derived_is_pointed_out() -> None:
    (reason,) = size("qwen3-0.6b").naive_reasons
    assert reason == (
        "head_dim is 128; with hidden_size / heads = 64 in its place "
        "the formula would give 0.5 of this figure"
    )


def test_ranks_that_hold_copies() -> None:
    found = size("qwen3-30b-a3b", tp=8)
    assert "4 KV heads on 8 ranks: each is held 2 times" in found.naive_reasons
    assert found.naive_factor == 0.5


def test_two_dtypes() -> None:
    found = size("llama-nemotron-ultra-253b", engine="llama.cpp", key_dtype="q8_0", value_dtype="q4_0")
    assert found.naive_bytes_per_token == 162 * 8 * 128 * (34 + 18) / 32


def test_an_assumed_model_is_the_naive_figure() -> None:
    fields = {
        "model_type": "unheard_of",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "dtype": "bfloat16",
    }
    found = size_of(from_config(fields, "here", assume_dense=True), Setup())
    assert found.assumed
    assert found.growing_bytes_per_token == found.naive_bytes_per_token == 4 * 2 * 2 * 16 * 2
