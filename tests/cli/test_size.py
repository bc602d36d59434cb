from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main

UNKNOWN = {
    "model_type": "unheard_of",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "bfloat16",
}


def document(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert main(["size", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["size", *words]) == status
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["size", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.fixture
def unknown(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    return str(tmp_path / "config.json")


def test_the_keys_that_machines_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "qwen3-8b", "--memory", "37.42GiB", "--context", "32Ki")
    assert {
        "growing_bytes_per_token": 147_456,
        "fixed_bytes_per_request": 0,
        "bytes_per_block": 2_359_296,
        "blocks": 17_030,
        "tokens": 272_480,
        "naive_bytes_per_token": 147_456,
    }.items() <= found.items()
    assert found["max_concurrency"] == 17_030 / 2048
    assert len(found["layers"]) == 36
    assert {"index", "kind", "growing_bytes_per_token", "fixed_bytes_per_request"} <= set(found["layers"][0])


def test_per_rank_and_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "deepseek-r1", "--tp", "8")
    assert (found["growing_bytes_per_token"], found["growing_bytes_per_token_total"]) == (70_272, 8 * 70_272)


def test_k_and_v_have_dtypes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "llama-3.2-3b",
        "--engine",
        "llama.cpp",
        "--k-dtype",
        "q4_0",
        "--v-dtype",
        "f16",
        "--context",
        "4096",
    )
    assert document(capsys, *words)["reserved_bytes"] == 287 * 2**20


def test_the_older_meaning_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gemma-4-31b", "--memory", "50GiB", "--context", "128Ki")
    older = document(capsys, *words, "--engine-version", "0.20.1")
    newer = document(capsys, *words)
    assert older["tokens"] == older["tokens_before"] == newer["tokens_before"]
    assert newer["tokens"] == newer["tokens_after"] > 6 * newer["tokens_before"]


def test_the_matrix_of_channels_and_codecs(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "qwen3-8b",
        "--context",
        "65536",
        "--tflops",
        "100",
        "--mapper",
        "1TB/s",
        "--channel",
        "x=3.1GB/s",
    )
    found = document(capsys, *words)["transfer"]
    assert round(found["prefill"]["linear_seconds"], 3) == 10.748
    assert found["prefill"]["seconds"] > 2 * found["prefill"]["linear_seconds"]
    assert [round(one["linear_speedup"], 1) for one in found["crossings"]] == [3.4, 6.9, 13.7]


def test_claims_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert "rate of MCDMA: authors' figure" in text(capsys, "qwen3-8b")


def test_a_source_that_all_channels_share_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3-8b", "--channel", "a=1GB/s", "--channel", "b=2GB/s")
    assert shown.count("given") == 1
    assert "the rates: given" in shown


@pytest.mark.parametrize("more", [(), ("--tflops", "400"), ("--params", "8.2e9")])
@pytest.mark.parametrize("context", ["1Ki", "64Ki", "10Mi"])
@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-r1"])
def test_the_matrix_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], model: str, context: str, more: tuple[str, ...]
) -> None:
    rows = text(capsys, model, "--context", context, *more).partition("carrying ")[2].splitlines()
    assert [row for row in rows if len(row) > 100] == []


def test_what_stands_beside_a_time_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3-8b", "--context", "64Ki")
    assert "beside each time: carrying wins where the receiver computes less than this" in shown
    assert "3.117 s  751 TFLOP/s" in shown
    assert "12.1 PFLOP/s" in shown


def test_gains_are_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3-8b", "--context", "64Ki", "--tflops", "100")
    assert "how many times faster than computing; in brackets by the linear rule" in shown


def test_what_has_no_room_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3-8b", "--context", "10Mi", "--memory", "1MiB")
    assert "in 1 MiB a rank: does not fit: 1.406 TiB needed for a request of 10,485,760 tokens" in shown
    assert "there is room for nothing" in shown
    assert "will log" not in shown


def test_what_has_room_for_less_says_for_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3-8b", "--context", "32Ki", "--memory", "1GiB")
    assert "does not fit: 4.5 GiB needed for a request of 32,768 tokens" in shown
    assert "there is room for 455 blocks; 7,280 tokens; one of 7,280 at the longest" in shown


def test_a_context_beyond_the_model_s_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "exceeds the 40,960 positions" in text(capsys, "qwen3-8b", "--context", "10Mi")
    assert "exceeds" not in text(capsys, "qwen3-8b", "--context", "40960")


def test_the_text_says_how_wrong_the_naive_figure_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "qwen3.5-35b-a3b", "--kv-dtype", "fp8")
    assert "4 times what grows:" in shown
    assert "30 of 40 layers keep a state of fixed size" in shown


def test_both_meanings_stand_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "gpt-oss-20b", "--memory", "10GiB", "--context", "32Ki")
    assert "tokens as vllm counted up to 0.20" in shown


def test_an_unknown_architecture(capsys: pytest.CaptureFixture[str], unknown: str) -> None:
    assert "'unheard_of' is not known here" in failed(capsys, unknown)


def test_an_assumed_figure_is_marked(capsys: pytest.CaptureFixture[str], unknown: str) -> None:
    assert "ASSUMED" in text(capsys, unknown, "--assume", "dense")
    assert document(capsys, unknown, "--assume", "dense")["assumed"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no model"),
        (("qwen3-8bb",), "did you mean 'qwen3-8b'"),
        (("qwen3-8b", "--memory", "37"), "has no unit"),
        (("qwen3-8b", "--kv-dtype", "q9"), "--k-dtype"),
        (("qwen3-8b", "--tp", "3"), "--tp 3"),
        (("qwen3-8b", "--engine", "vlm"), "--engine"),
        (("qwen3-8b", "--tflops", "-1"), "--tflops"),
        (("qwen3-8b", "--channel", "1GB/s"), "write a name and a rate"),
        (("qwen3-8b", "--engine-version", "new"), "--engine-version"),
        (("qwen3-8b", "--shared", "--no-shared"), "give one of them"),
        (("qwen3-8b", "--log", "hello"), "no line about a KV cache"),
    ],
)
def test_what_cannot_be_computed(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert message in failed(capsys, *words)


def test_a_log_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("--log", "Available KV cache memory: 37.42 GiB", "--log", "GPU KV cache size: 272,480 tokens")
    assert "the log fits" in text(capsys, "qwen3-8b", *lines)


def test_a_log_that_does_not_fit_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("--log", "Available KV cache memory: 37.42 GiB", "--log", "GPU KV cache size: 544,976 tokens")
    shown = text(capsys, "qwen3-8b", *lines, status=1)
    assert "the log does NOT fit" in shown
    assert "it would fit with --kv-dtype fp8" in shown
    assert document(capsys, "qwen3-8b", *lines, status=1)["fits"] is False


def test_neither_torch_nor_numpy_is_needed() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from kvferry.cli.main import main;"
        "main(['size', 'qwen3-8b', '--memory', '1GiB', '--json']);"
        "sys.exit(', '.join({'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
