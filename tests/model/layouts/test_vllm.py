"""vLLM's counts: blocks, groups, pages, both meanings of its log line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ModelError, UsageError
from kvferry.model.config import from_config
from kvferry.model.layouts.setup import Setup
from kvferry.model.layouts.vllm import VllmLayout
from kvferry.model.open import open_model
from kvferry.model.size import Size, size_of

GIB = 2**30


def size(name: str, **setup: Any) -> Size:
    return size_of(open_model(name), Setup(**setup))


def dense(layers: int, heads: int, width: int = 128) -> dict[str, Any]:
    return {"num_hidden_layers": layers, "num_key_value_heads": heads, "head_dim": width, "dtype": "bfloat16"}


def test_blocks_of_a_dense_model() -> None:
    found = size("qwen3-8b", memory_bytes=int(37.42 * GIB), context=40_960)
    assert (found.bytes_per_block, found.blocks, found.tokens) == (2_359_296, 17_030, 272_480)
    assert found.max_concurrency == 17_030 / 2560


def test_ranks_divide_heads() -> None:
    assert size("llama-3.3-70b", tp=4).growing_bytes_per_token == 81_920


def test_more_ranks_than_heads_hold_copies() -> None:
    found = size("qwen3-30b-a3b", tp=8)
    assert found.growing_bytes_per_token == 48 * 2 * 128 * 2
    assert found.growing_bytes_per_token_total == 8 * 48 * 2 * 128 * 2


def test_ranks_that_fit_no_heads() -> None:
    with pytest.raises(UsageError, match="--tp 4 neither divides the 10 KV heads"):
        size("phi-4", tp=4)


def test_a_latent_is_not_divided() -> None:
    found = size("deepseek-r1", tp=8)
    assert (found.growing_bytes_per_token, found.block_tokens) == (70_272, 64)
    assert round(found.naive_factor or 0, 1) == 7.1


def test_context_parallel_ranks_divide_tokens() -> None:
    found = size("deepseek-r1", tp=8, dcp=8, memory_bytes=40 * GIB, context=65_536)
    assert found.growing_bytes_per_token == 70_272 / 8
    assert found.tokens_before == 8 * 64 * (found.blocks or 0)
    assert found.blocks_per_request == 65_536 // 8 // 64


def test_an_indexer_adds_its_keys() -> None:
    assert size("deepseek-v3.2").growing_bytes_per_token == 61 * (1152 + 132)
    assert size("deepseek-v3.2", key_dtype="fp8", value_dtype="fp8").growing_bytes_per_token == 61 * (
        656 + 132
    )


def test_a_pipeline_is_as_wide_as_its_fullest_stage() -> None:
    found = size("glm-4.5", pp=8, memory_bytes=GIB)
    assert found.growing_bytes_per_token == 12 * 4096
    assert found.blocks == GIB // (12 * 4096 * 16)


def test_groups_of_a_pipeline_are_split_with_it() -> None:
    one, two = (size("gpt-oss-120b", pp=pp) for pp in (1, 2))
    assert (one.bytes_per_block, two.bytes_per_block) == (18 * 32_768, 9 * 32_768)


def test_groups_have_the_size_of_the_smallest_kind() -> None:
    found = size("gemma-3-27b")
    assert sorted(pool.layers for pool in found.pools) == [8, 8, 9, 9, 9, 9, 10]
    assert "Add 8 padding layers, may waste at most 15.38% KV cache memory" in found.log_lines


def test_groups_have_the_size_of_the_largest_kind_where_it_is_close() -> None:
    """12 sliding and 12 full layers, and one of a draft head: groups of 13, not of 12."""
    found = size("gpt-oss-20b", draft_layers=1)
    assert sorted(pool.layers for pool in found.pools) == [12, 13]
    assert found.bytes_per_block == 13 * 32_768


def test_a_draft_layer_grows() -> None:
    with_draft, without = size("qwen3-8b", draft_layers=1), size("qwen3-8b")
    assert with_draft.growing_bytes_per_token == without.growing_bytes_per_token / 36 * 37


def test_a_state_sets_the_block_and_is_padded() -> None:
    found = size("qwen3.5-35b-a3b", key_dtype="fp8", value_dtype="fp8")
    assert found.block_tokens == 2096
    assert {pool.page_bytes for pool in found.pools} == {2096 * 1024}


@pytest.mark.parametrize(("mode", "blocks"), [("none", 16 + 3), ("align", 16 + 6), ("all", 16 * 4)])
def test_blocks_of_a_request_with_states(mode: str, blocks: int) -> None:
    found = size(
        "qwen3.5-35b-a3b",
        key_dtype="fp8",
        value_dtype="fp8",
        state_mode=mode,
        context=32_768,
        memory_bytes=GIB,
    )
    assert found.blocks_per_request == blocks


def test_drafted_tokens_take_state_blocks_and_taps() -> None:
    found = size(
        "qwen3.6-27b",
        key_dtype="fp8",
        value_dtype="fp8",
        state_mode="align",
        draft_layers=1,
        draft_tokens=3,
        context=262_144,
        memory_bytes=10 * GIB,
    )
    assert found.block_tokens == 1600
    assert found.blocks_per_request == 164 + 3 * (2 + 3)


def test_a_window_holds_a_step_and_one_block_more() -> None:
    found = size("gpt-oss-20b", context=65_536, batch_tokens=2048, memory_bytes=GIB)
    assert found.blocks_per_request == 65_536 // 16 + -(-(127 + 2048) // 16) + 1


def test_a_chunk_holds_a_step() -> None:
    found = size("llama-4-scout", context=131_072, batch_tokens=2048, memory_bytes=8 * GIB)
    assert found.blocks_per_request == 131_072 // 16 + 3 * -(-(8192 + 2048) // 16)


def test_unlike_pages_are_made_alike() -> None:
    found = size("gemma-4-31b", tp=4)
    assert {(pool.name, pool.block_tokens, pool.page_bytes) for pool in found.pools} == {
        ("sliding", 16, 65_536),
        ("full", 32, 65_536),
    }


def test_pages_that_cannot_be_made_alike() -> None:
    model = from_config(
        {
            **dense(2, 3),
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 64,
            "global_head_dim": 80,
        },
        "here",
    )
    with pytest.raises(ModelError, match="cannot unify its pages"):
        VllmLayout(model, Setup())


def test_without_the_hybrid_manager_windows_grow() -> None:
    assert size("gpt-oss-20b", hybrid=False).growing_bytes_per_token == 49_152


def test_both_meanings_of_the_token_line() -> None:
    before = size("gemma-4-31b", memory_bytes=50 * GIB, context=131_072, version=(0, 20))
    after = size("gemma-4-31b", memory_bytes=50 * GIB, context=131_072)
    assert before.tokens == before.tokens_before == after.tokens_before == 20_480 // 6 * 16
    assert after.tokens == after.tokens_after == int((after.max_concurrency or 0) * 131_072)


def test_only_states_cost_the_same_at_any_length() -> None:
    model = from_config(
        {
            "model_type": "mamba2",
            "num_hidden_layers": 4,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 1,
            "state_size": 16,
            "conv_kernel": 4,
            "dtype": "bfloat16",
        },
        "here",
    )
    found = size_of(model, Setup(memory_bytes=GIB, context=4096))
    assert found.growing_bytes_per_token == 0
    assert found.longest_context is None
    assert found.naive_factor is None


@given(
    layers=st.integers(1, 12),
    heads=st.sampled_from([1, 2, 4, 8]),
    full=st.integers(1, 12),
    window=st.integers(2, 5000),
    memory=st.integers(2**24, 2**32),
    batch=st.integers(16, 8192),
)
def test_what_fits_fits_and_one_token_more_does_not(
    layers: int, heads: int, full: int, window: int, memory: int, batch: int
) -> None:
    count = layers + full
    fields = {
        **dense(count, heads, 64),
        "layer_types": ["sliding_attention"] * layers + ["full_attention"] * full,
        "sliding_window": window,
    }
    layout = VllmLayout(from_config(fields, "here"), Setup(batch_tokens=batch))
    blocks = layout.blocks(memory)
    assert blocks * layout.bytes_per_block <= memory < (blocks + 1) * layout.bytes_per_block
    longest = layout.capacity(memory, None).longest_context
    assert longest is not None
    if longest:
        assert layout.blocks_per_request(longest) <= blocks
    assert layout.blocks_per_request(longest + 1) > blocks
    # Padding never holds less than what is needed.
    assert layout.reserved_bytes(4096) >= sum(one.at(4096) for one in layout.kept)
