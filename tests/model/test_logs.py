"""Reading log lines with their rounding, and saying whether they fit."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.errors import FormatError, UsageError
from kvferry.model.agreement import Agreement, compare
from kvferry.model.layouts.setup import Setup
from kvferry.model.logs import figure, read_log
from kvferry.model.open import open_model
from kvferry.model.size import size_of

GIB, MIB = 2**30, 2**20
QWEN3_NEXT = (
    "Setting attention block size to 1072 tokens\nAvailable KV cache memory: 17.58 GiB\n"
    "GPU KV cache size: 767,552 tokens\nMaximum concurrency for 32,768 tokens per request: 84.29x"
)


def checked(name: str, text: str, **setup: Any) -> Agreement:
    return compare(open_model(name), Setup(**setup), read_log(text))


def test_a_printed_number_is_an_interval() -> None:
    found = figure("3.81", GIB)
    assert (found.low, found.high) == pytest.approx((3.805 * GIB, 3.815 * GIB))


def test_a_whole_number_is_exact() -> None:
    assert figure("1,504").low == figure("1,504").high == 1504


def test_a_decimal_comma() -> None:
    assert figure("2160,00", MIB).value == 2160 * MIB


def test_lines_of_vllm() -> None:
    found = read_log(QWEN3_NEXT)
    assert (found.engine, found.block_tokens, found.tokens, found.context) == ("vllm", 1072, 767_552, 32_768)
    assert found.concurrency is not None
    assert found.concurrency.value == 84.29


def test_lines_of_vllm_that_it_stops_with() -> None:
    found = read_log(
        "To serve at least one request with the model's max seq len (262144), (9.29 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (9.28 GiB). Based on the available memory, the "
        "estimated maximum model length is 260800."
    )
    assert (found.context, found.longest_context) == (262_144, 260_800)
    assert found.needed is not None
    assert found.memory is not None


def test_lines_of_sglang() -> None:
    found = read_log(
        "Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, "
        "ssm_state size: 6.46GB\n"
        "KV Cache is allocated. #tokens: 2618868, K size: 19.98 GB, V size: 19.98 GB"
    )
    assert (found.engine, found.slots, found.tokens) == ("sglang", 48, 2_618_868)
    assert [buffer.kind for buffer in found.buffers] == ["states", "cells"]


def test_lines_of_llama_cpp() -> None:
    found = read_log(
        "llama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs), "
        "K (f16):  256.00 MiB, V (f16):  256.00 MiB\n"
        "llama_memory_recurrent: size =   50.25 MiB (     1 cells,  32 layers,  1 seqs), "
        "R (f32):    2.25 MiB, S (f32):   48.00 MiB"
    )
    cells, states = found.buffers
    assert (cells.kind, cells.cells, cells.layers) == ("cells", 4096, 32)
    assert states.kind == "states"
    assert states.values is not None
    assert states.values.value == 48 * MIB


def test_a_line_about_something_else() -> None:
    with pytest.raises(FormatError, match="no line about a KV cache"):
        read_log("INFO: Application startup complete.")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tensorrt-llm"])
@pytest.mark.parametrize(
    "name", ["qwen3-8b", "deepseek-r1", "gpt-oss-20b", "qwen3.5-4b", "gemma-4-e4b", "lfm2.5-1.2b"]
)
def test_what_we_say_will_be_logged_fits_when_it_is(name: str, engine: str) -> None:
    setup = Setup(engine=engine, memory_bytes=33 * GIB, context=16_384)
    lines = size_of(open_model(name), setup).log_lines
    assert lines
    assert compare(open_model(name), setup, read_log("\n".join(lines))).fits


def test_both_meanings_fit_and_are_told_apart() -> None:
    found = checked("qwen3-next-80b-a3b", QWEN3_NEXT, tp=2, key_dtype="fp8", value_dtype="fp8")
    assert found.fits
    assert found.meaning == "before 0.21"


def test_what_differs_is_named() -> None:
    found = checked("qwen3-next-80b-a3b", QWEN3_NEXT, tp=2)
    assert not found.fits
    assert "--kv-dtype fp8" in found.instead
    wrong = {one.what: (one.logged, one.computed) for one in found.findings if not one.fits}
    assert wrong["attention block size"] == ("1,072", "544")


def test_a_fitting_log_within_its_rounding_only() -> None:
    line = "Available KV cache memory: 41.60 GiB\nGPU KV cache size: {} tokens"
    setup = {"tp": 8, "block_tokens": 64}
    assert checked("deepseek-r1", line.format("635,648"), **setup).fits
    assert not checked("deepseek-r1", line.format("635,840"), **setup).fits


def test_the_memory_may_be_given_instead_of_logged() -> None:
    text = "GPU KV cache size: 272,480 tokens"
    assert checked("qwen3-8b", text, memory_bytes=int(37.42 * GIB)).fits
    assert not checked("qwen3-8b", text, memory_bytes=int(30 * GIB)).fits


def test_concurrency_alone_tells_the_blocks() -> None:
    text = "GPU KV cache size: 217,264 tokens\nMaximum concurrency for 2,048 tokens per request: 313.37x"
    assert checked("lfm2.5-1.2b", text).fits
    assert not checked("lfm2.5-1.2b", text.replace("313.37", "213.37")).fits


def test_another_engines_line() -> None:
    with pytest.raises(UsageError, match="write --engine sglang"):
        checked("qwen3-8b", "KV Cache is allocated. #tokens: 10, K size: 1.00 GB, V size: 1.00 GB")


def test_a_line_that_says_too_little() -> None:
    with pytest.raises(UsageError, match="too little to compare"):
        checked("qwen3-8b", "GPU KV cache size: 272,480 tokens")
