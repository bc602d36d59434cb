"""What engines have logged in public, against what is computed from the model's fields.

The reports are not part of this repository; without them the tests are skipped. A report gives some fields
of a config; what it describes in words ("as above", "18 sliding / 18 full alternating") is completed here,
by the published config of the model it names, and nothing is tuned. `EXCEPTIONS` says which are not
reproduced.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvferry.errors import ModelError
from kvferry.model.agreement import compare
from kvferry.model.config import from_config
from kvferry.model.layers import Model
from kvferry.model.layouts.choose import layout_of
from kvferry.model.layouts.llama_cpp import LlamaCppLayout
from kvferry.model.layouts.setup import Setup
from kvferry.model.layouts.vllm import VllmLayout
from kvferry.model.logs import read_log
from kvferry.model.size import size_of

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kv-size-cases.jsonl"

EXCEPTIONS = {
    "vllm-dsv4-flash": "layers with a compressed cache are not known here; nor does the report give one rate",
}
"""Reports that are not reproduced, and why."""

ENGINES = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "SGLang + kvcached": "sglang",
    "TensorRT-LLM": "tensorrt-llm",
    "LMCache MP": "vllm",
    "llama.cpp": "llama.cpp",
}


def _e4b() -> dict[str, Any]:
    return {
        "num_hidden_layers": 42,
        "num_kv_shared_layers": 18,
        "layer_types": [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(42)],
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
    }


GPT_OSS_20B = {
    "num_hidden_layers": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
STATES_IN_FLOAT32 = {"mamba_ssm_dtype": "float32"}

COMPLETED: dict[str, dict[str, Any]] = {
    "vllm-granite4-micro": {"layer_types": ["attention"] * 40},
    "vllm-gptoss120b": {"layer_types": ["sliding_attention", "full_attention"] * 18},
    "vllm-gemma4-31b-v020-v021": {"sliding_window": 1024},
    "vllm-qwen36-27b-nvfp4": STATES_IN_FLOAT32,
    "vllm-qwen35-27b-need": STATES_IN_FLOAT32,
    "vllm-nemotron-nano9b": {"mamba_layers": 27},
    "sgl-gpt2-kvcached": {"model_type": "gpt2"},
    "sgl-gemma4-26b-nvfp4": {"sliding_window": 1024},
    "sgl-gemma4-e4b": _e4b(),
    "kvcached-qwen35-9b-state": {"num_key_value_heads": 4, "head_dim": 256},
    # Its pages are padded to the latent's, so that the widths of the states do not matter to the figure.
    "lmcache-kimi-k3": {"linear_num_heads": 32, "linear_head_dim": 128, "short_conv_kernel_size": 4},
    "ik-dscoder-lite": {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    "ik-nemotron-ultra": {"num_key_value_heads": 8},
    "lc-gptoss20b-swa2304": GPT_OSS_20B,
    "lc-gptoss20b-q8": GPT_OSS_20B,
    "lc-gemma4-e4b-full": _e4b(),
    "lc-gemma4-e4b-swa": _e4b(),
    "lc-gemma4-e4b-q8swa": _e4b(),
    "lc-gemma4-e4b-noFA": _e4b(),
    "lc-gemma2-2b": {"layer_types": ["sliding_attention", "full_attention"] * 13},
}
"""Fields that the report gives in words, or by reference."""

_E4B_IN_WORDS = ("own_full_layers", "own_sliding_layers", "own_layers")

SETUPS: dict[str, dict[str, Any]] = {
    "vllm-qwen35-35b-a": {"state_mode": "align"},
    "vllm-qwen36-27b-nvfp4": {"state_mode": "align"},
    "vllm-qwen35-27b-need": {"state_mode": "align", "draft_layers": 1, "draft_tokens": 3},
    "sgl-gemma4-26b-nvfp4": {"block_tokens": 256},
    "ik-r1-mla1": {"flash_attention": False},
    "ik-dscoder-lite": {"latent": False},
    "lc-gemma4-12b-swa": {"sequences": 4},
    "lc-gemma2-2b": {"sequences": 4},
    "lc-gptoss20b-swa2304": {"batch_tokens": 2048},
    "lc-gemma4-e4b-swa": {"full_window": True},
    "lc-gemma4-e4b-noFA": {"flash_attention": False},
    "lc-qwen35-35b-rs4": {"sequences": 4},
}
"""What the report says of the deployment beyond its own columns."""


def reports() -> list[dict[str, Any]]:
    if not DATA.exists():
        return []
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


REPORTS = {report["id"]: report for report in reports()}
needs_reports = pytest.mark.skipif(not REPORTS, reason="the collected reports are not part of the repository")


def model_of(report: dict[str, Any]) -> Model:
    fields = {**report["config"], **COMPLETED.get(report["id"], {})}
    if COMPLETED.get(report["id"], {}).get("num_kv_shared_layers"):
        fields = {name: value for name, value in fields.items() if name not in _E4B_IN_WORDS}
    # Most reports leave it out; it decides nothing where the report names its KV dtype.
    fields["torch_dtype"] = "bfloat16"
    return from_config(fields, report["id"])


def dtypes_of(report: dict[str, Any]) -> tuple[str, str]:
    text = report["kv_dtype"]
    if text.startswith(("f32", "ssm")):
        return "auto", "auto"
    first = re.split(r"[\s(/]", text)[0]
    split = re.search(r"/ ?(\w+)(?: V)?$", text)
    return first, split[1] if split else first


def setup_of(report: dict[str, Any], **changes: Any) -> Setup:
    engine = ENGINES[report["engine"]]
    key, value = dtypes_of(report)
    hybrid = any(
        "linear" in name or "mamba" in name or "kda" in name or "conv" in name for name in report["config"]
    )
    # A hybrid's block size must come out by itself.
    block = (
        report["block_size"]
        if engine == "vllm" and isinstance(report["block_size"], int) and not hybrid
        else None
    )
    return Setup(
        **{
            "engine": engine,
            "tp": report["tp"],
            "pp": report["pp"],
            "key_dtype": key,
            "value_dtype": value,
            "block_tokens": block,
            **SETUPS.get(report["id"], {}),
            **changes,
        }
    )


def logged(engine: str) -> list[str]:
    """The reports of an engine whose text holds lines that are read."""
    found = []
    for name, report in REPORTS.items():
        if ENGINES[report["engine"]] == engine and name not in EXCEPTIONS and name not in BY_HAND:
            found.append(name)
    return found


BY_HAND = {
    "vllm-gemma4-31b-tp4-block",
    "vllm-gemma4-31b-v020-v021",
    "vllm-glm4x-pp8",
    "vllm-nemotron-nano9b",
    "kvcached-qwen35-9b-state",
    "lmcache-kimi-k3",
    "lc-llama32-3b-q4_0",
    "lc-llama32-3b-q4_1",
    "lc-gemma2-2b",
    "lc-gemma4-12b-swa",
    "sgl-gemma4-26b-fp8",
}
"""Reports in words and not in lines of a log: each has a test of its own."""


@needs_reports
@pytest.mark.parametrize(
    "name", [name for engine in sorted(set(ENGINES.values())) for name in logged(engine)]
)
def test_the_lines_of_its_log_fit(name: str) -> None:
    report = REPORTS[name]
    agreement = compare(model_of(report), setup_of(report), read_log(report["raw"]))
    assert agreement.fits, agreement


@needs_reports
@pytest.mark.parametrize("name", logged("vllm"))
def test_vllm_in_numbers(name: str) -> None:
    """The same from the report's own columns, without the reader of logs."""
    report = REPORTS[name]
    said = report["reported"]
    layout = layout_of(model_of(report), setup_of(report))
    assert isinstance(layout, VllmLayout)
    if isinstance(report["block_size"], int):
        assert layout.block_tokens == report["block_size"]
    if "tokens" not in said or "memory_bytes" not in said:
        return
    exact = said["memory_as_logged"].endswith(" B")
    half = 0 if exact else 0.005 * 2**30
    counts = range(
        layout.blocks(int(said["memory_bytes"] - half)), layout.blocks(int(said["memory_bytes"] + half)) + 1
    )
    context = said.get("max_model_len") if said.get("max_concurrency") else None
    found = [layout.capacity(blocks * layout.bytes_per_block, context) for blocks in counts]
    # One over at most: the memory that was printed is rounded to the nearest byte here.
    assert any(said["tokens"] in (one.tokens_before, one.tokens_after) for one in found)
    if "blocks" in said:
        assert said["blocks"] in counts
    if context:
        assert any(round(one.max_concurrency or 0, 2) == said["max_concurrency"] for one in found)


@needs_reports
@pytest.mark.parametrize(
    "name", [name for name, one in REPORTS.items() if "naive_2LHD_bytes_per_token" in (one["computed"] or {})]
)
def test_the_naive_figure_is_the_one_that_was_wrong(name: str) -> None:
    report = REPORTS[name]
    expected = report["computed"]["naive_2LHD_bytes_per_token"]
    if name in NAIVE_OTHERWISE:
        pytest.skip(NAIVE_OTHERWISE[name])
    size = size_of(model_of(report), setup_of(report), layers=False)
    assert size.naive_bytes_per_token == pytest.approx(expected)


NAIVE_OTHERWISE = {
    "vllm-kimi-linear-tp2": "the report's naive figure is 27 latents, not 2 L Hkv D",
    "vllm-nemotron3-nano4b": "counted over 42 layers, which the report's config does not say",
    "sgl-gemma4-26b-nvfp4": "without the scales of NVFP4, over the sliding layers alone",
    "ik-r1-mla1": "the report's naive figure is one latent a layer",
    "lc-gemma4-e4b-noFA": "over the 20 sliding layers alone",
}


# -- reports in words --------------------------------------------------------------------------------------


@needs_reports
def test_pages_of_unlike_heads_are_made_alike() -> None:
    report = REPORTS["vllm-gemma4-31b-tp4-block"]
    size = size_of(model_of(report), setup_of(report, block_tokens=16))
    assert size.bytes_per_block == report["reported"]["block_bytes"]
    assert [pool.layers for pool in size.pools] == [10] * 6
    assert {(pool.name, pool.block_tokens) for pool in size.pools} == {("sliding", 16), ("full", 32)}
    kept = layout_of(model_of(report), setup_of(report, block_tokens=16)).kept
    assert sum(one.token_bytes for one in kept) == report["reported"]["bytes_per_token"]


@needs_reports
def test_the_older_token_line_divides_by_groups() -> None:
    """About 55k tokens in about 50 GB. The newer figure needs a context that the report does not give."""
    report = REPORTS["vllm-gemma4-31b-v020-v021"]
    size = size_of(
        model_of(report), setup_of(report, block_tokens=16, version=(0, 20), memory_bytes=50 * 2**30)
    )
    assert size.tokens == pytest.approx(report["reported"]["tokens_v0.20"], rel=0.01)


@needs_reports
def test_the_need_of_a_pipeline_was_checked_against_one_rank() -> None:
    """This build compared the whole model's need with one rank's memory: as with one stage."""
    report = REPORTS["vllm-glm4x-pp8"]
    agreement = compare(model_of(report), setup_of(report, pp=1), read_log(report["raw"]))
    assert agreement.fits, agreement


@needs_reports
def test_the_largest_stage_holds_twelve_layers() -> None:
    report = REPORTS["vllm-glm4x-pp8"]
    size = size_of(model_of(report), setup_of(report))
    assert size.growing_bytes_per_token == report["computed"]["per_stage_bytes_per_token_max_12_layers"]
    assert size.growing_bytes_per_token_total == report["computed"]["bytes_per_token_whole_model"]


@needs_reports
def test_a_state_sets_the_block_size() -> None:
    report = REPORTS["vllm-nemotron-nano9b"]
    size = size_of(model_of(report), setup_of(report))
    assert size.block_tokens == report["reported"]["attention_block_size"]
    assert "Padding mamba page size by 2.13%" in size.log_lines


@needs_reports
def test_the_raw_bytes_of_a_state() -> None:
    report = REPORTS["kvcached-qwen35-9b-state"]
    kept = layout_of(model_of(report), setup_of(report)).kept
    states = [one.state_bytes for one in kept if one.state_bytes]
    assert states == [report["reported"]["raw_cell_bytes"]] * report["reported"]["mamba_layers"]


@needs_reports
def test_padded_pages_divided_by_tokens_are_no_rate() -> None:
    """LMCache divides every page by the block's tokens: 3.9 times what grows."""
    report = REPORTS["lmcache-kimi-k3"]
    size = size_of(model_of(report), setup_of(report))
    pages = sum((pool.page_bytes or 0) * pool.layers for pool in size.pools)
    assert pages / size.block_tokens == report["reported"]["cache_size_per_token_bytes"]
    assert size.growing_bytes_per_token == report["computed"]["true_growing_24_MLA"]


@needs_reports
@pytest.mark.parametrize("name", ["lc-llama32-3b-q4_0", "lc-llama32-3b-q4_1"])
def test_k_and_v_have_dtypes_of_their_own(name: str) -> None:
    report = REPORTS[name]
    size = size_of(model_of(report), setup_of(report, context=report["reported"]["cells"]))
    assert size.reserved_bytes == report["reported"]["mib"] * 2**20


@needs_reports
def test_four_windows_are_larger_than_the_context() -> None:
    report = REPORTS["lc-gemma2-2b"]
    size = size_of(model_of(report), setup_of(report, context=report["reported"]["cells"]))
    assert size.reserved_bytes == report["reported"]["mib"] * 2**20


@needs_reports
def test_a_window_a_sequence_and_one_batch() -> None:
    report = REPORTS["lc-gemma4-12b-swa"]
    layout = layout_of(model_of(report), setup_of(report))
    assert isinstance(layout, LlamaCppLayout)
    assert layout.cells(8192) == (8192, report["reported"]["cells"])
    assert layout.reserved_bytes(8192) == report["reported"]["mib"] * 2**20


@needs_reports
def test_sglang_keeps_two_pools() -> None:
    """The sizes of the pools stand in the report's text."""
    from kvferry.model.layouts.sglang import SglangLayout

    report = REPORTS["sgl-gemma4-26b-fp8"]
    layout = layout_of(model_of(report), setup_of(report))
    assert isinstance(layout, SglangLayout)
    assert round(layout.pool_bytes(37_081, 29_664) / 2**30, 2) == 3.18


@needs_reports
def test_a_pool_for_windows_is_padded_to_256_cells() -> None:
    report = REPORTS["lc-gptoss20b-swa2304"]
    layout = layout_of(model_of(report), setup_of(report))
    assert isinstance(layout, LlamaCppLayout)
    assert layout.cells(131_072)[1] == report["reported"]["cells"]


@needs_reports
@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_an_exception_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match="compressed cache"):
        model_of(REPORTS[name])


@needs_reports
def test_every_report_is_tested() -> None:
    tested = {name for engine in set(ENGINES.values()) for name in logged(engine)}
    assert set(REPORTS) - tested - BY_HAND - set(EXCEPTIONS) == set()
