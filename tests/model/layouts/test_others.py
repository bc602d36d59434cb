"""SGLang's pools, llama.cpp's cells, and the engines that keep everything."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.errors import ModelError, UsageError
from kvferry.model.config import from_config
from kvferry.model.layouts.llama_cpp import LlamaCppLayout
from kvferry.model.layouts.setup import Setup
from kvferry.model.layouts.sglang import SglangLayout
from kvferry.model.layouts.stages import stage_ranges
from kvferry.model.open import open_model
from kvferry.model.size import Size, size_of

GIB, MIB = 2**30, 2**20


def size(name: str, engine: str, **setup: Any) -> Size:
    return size_of(open_model(name), Setup(engine=engine, **setup))


def llama(name: str, **setup: Any) -> LlamaCppLayout:
    return LlamaCppLayout(open_model(name), Setup(engine="llama.cpp", **setup))


# -- sglang ------------------------------------------------------------------------------------------------


def test_one_pool_of_tokens() -> None:
    found = size("gpt2", "sglang", memory_bytes=int(8.5308 * GIB))
    assert found.tokens == int(8.5308 * GIB) // 36_864
    assert found.log_lines == (
        f"KV Cache is allocated. #tokens: {found.tokens}, K size: 4.27 GB, V size: 4.27 GB",
    )


def test_two_pools_in_a_fixed_ratio() -> None:
    layout = SglangLayout(
        open_model("gemma-4-26b-a4b"), Setup(engine="sglang", key_dtype="fp8", value_dtype="fp8")
    )
    full, sliding = layout.pool_tokens(3_417_303_040)
    assert abs(full - 37_081) <= 1
    assert sliding == int(full * 0.8)


def test_sharing_is_not_used_unless_said() -> None:
    assert size("gemma-4-e4b", "sglang").growing_bytes_per_token == 7 * 4096
    assert size("gemma-4-e4b", "sglang", sharing=True).growing_bytes_per_token == 4 * 4096


def test_one_slot_more_than_asked_for() -> None:
    found = size("nemotron-nano-9b-v2", "sglang", memory_bytes=50 * GIB, sequences=48)
    line = (
        "Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, ssm_state size: 6.46GB"
    )
    assert found.log_lines[0] == line


def test_a_latent_has_one_size() -> None:
    found = size("deepseek-r1", "sglang", tp=8, memory_bytes=40 * GIB)
    assert found.log_lines[0].endswith("KV size: 40.00 GB")


# -- llama.cpp ---------------------------------------------------------------------------------------------


def test_auto_is_float16_whatever_the_model() -> None:
    assert size("smollm2-135m", "llama.cpp").key_dtype == "float16"


def test_the_context_is_padded_to_256_cells() -> None:
    assert llama("qwen3-8b").cells(1000) == (1024, 0)


@pytest.mark.parametrize(
    ("sequences", "streams", "batch", "expected"),
    [(1, 1, 512, 768), (4, 1, 512, 1024), (1, 1, 2048, 2304), (4, 4, 512, 4 * 768)],
)
def test_cells_of_a_window(sequences: int, streams: int, batch: int, expected: int) -> None:
    layout = llama("gpt-oss-20b", sequences=sequences, streams=streams, batch_tokens=batch)
    assert layout.cells(131_072)[1] == expected


def test_a_window_holds_no_more_than_the_context() -> None:
    assert llama("gemma-2-2b", sequences=4).cells(8192) == (8192, 8192)


def test_swa_full_saves_nothing() -> None:
    layout = llama("gpt-oss-20b", full_window=True)
    assert layout.cells(32_768) == (32_768, 32_768)
    assert layout.reserved_bytes(32_768) == 32_768 * 24 * 2048


def test_states_are_float32_and_one_a_sequence_and_draft() -> None:
    one = llama("qwen3.5-4b")
    assert one.reserved_bytes(256) - 256 * 32_768 == 50.25 * MIB
    four = llama("qwen3.5-4b", sequences=4, draft_tokens=2)
    assert four.reserved_bytes(256) - 256 * 32_768 == 4 * 3 * 50.25 * MIB


def test_without_flash_attention_v_is_as_wide_as_the_widest() -> None:
    layout = llama("gemma-4-e4b", flash_attention=False)
    sliding = [one for one in layout.kept if one.window]
    assert {one.key_bytes for one in sliding} == {1024}
    assert {one.value_bytes for one in sliding} == {2048}


def test_without_flash_attention_the_latent_is_kept_twice() -> None:
    assert (
        size("deepseek-r1", "llama.cpp", flash_attention=False).growing_bytes_per_token
        == 61 * (576 + 512) * 2
    )


def test_expanded_heads_of_a_latent() -> None:
    assert (
        size("deepseek-coder-v2-lite", "llama.cpp", latent=False).growing_bytes_per_token == 27 * 16 * 320 * 2
    )


def test_expanded_heads_need_their_widths() -> None:
    fields = {"num_hidden_layers": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "num_attention_heads": 2}
    with pytest.raises(ModelError, match="qk_nope_head_dim is missing"):
        LlamaCppLayout(from_config(fields, "here"), Setup(engine="llama.cpp", latent=False))


def test_v_is_not_quantised_without_flash_attention() -> None:
    with pytest.raises(UsageError, match="only with flash attention"):
        llama("qwen3-8b", value_dtype="q8_0", flash_attention=False)


def test_the_longest_context_fits_and_the_next_does_not() -> None:
    layout = llama("gpt-oss-20b", key_dtype="q8_0", value_dtype="q8_0")
    longest = layout.capacity(GIB, None).longest_context
    assert longest is not None
    assert layout.reserved_bytes(longest) <= GIB < layout.reserved_bytes(longest + 256)


def test_heads_are_not_split() -> None:
    with pytest.raises(UsageError, match="write --pp 2"):
        Setup(engine="llama.cpp", tp=2)


# -- the others --------------------------------------------------------------------------------------------


def test_scales_of_lmdeploy() -> None:
    plain, scaled = (size("llama-3.1-8b", "lmdeploy", key_dtype=d, value_dtype=d) for d in ("bf16", "int4"))
    assert plain.growing_bytes_per_token == 131_072
    assert scaled.growing_bytes_per_token == 32 * 2 * 8 * (64 + 4)


def test_lmdeploy_keeps_windows_whole() -> None:
    assert size("gpt-oss-20b", "lmdeploy").growing_bytes_per_token == 49_152


def test_the_line_of_tensorrt() -> None:
    found = size("qwen3-0.6b", "tensorrt-llm", memory_bytes=int(68.70 * GIB))
    assert found.log_lines == (f"Allocated 68.70 GiB for max tokens in paged KV cache ({found.tokens})",)


def test_transformers_keeps_one_token_less_than_the_window() -> None:
    assert size("gpt-oss-20b", "transformers").fixed_bytes_per_request == 12 * 2048 * 127


# -- setups ------------------------------------------------------------------------------------------------


def test_what_is_left_over_goes_before_the_last_stage() -> None:
    assert [len(stage) for stage in stage_ranges(92, 8)] == [11, 11, 11, 12, 12, 12, 12, 11]
    assert [len(stage) for stage in stage_ranges(61, 2)] == [31, 30]


def test_more_stages_than_layers() -> None:
    with pytest.raises(UsageError, match="only 2 layers"):
        stage_ranges(2, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "vlm"}, "no engine 'vlm'"),
        ({"tp": 0}, "--tp"),
        ({"block_tokens": 0}, "--block-tokens"),
        ({"draft_layers": -1}, "--draft-layers"),
        ({"dcp": 2, "tp": 2, "engine": "sglang"}, "only vllm"),
        ({"dcp": 3, "tp": 4}, "does not divide"),
    ],
)
def test_setups_that_no_engine_has(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Setup(**fields)


def test_auto_needs_a_dtype() -> None:
    fields = {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}
    with pytest.raises(ModelError, match=r"dtype \(or torch_dtype\) is missing"):
        size_of(from_config(fields, "here"), Setup())
