from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli import main as frame

SAFE: dict[str, Any] = {
    "kv_connector": "FerryConnector",
    "kv_connector_module_path": "kvferry.engines.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"pool": "valkey://user:word@127.0.0.1:6379", "publish": "second-touch"},
}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = frame.main(["doctor", "--vllm", *words])
    seen = capsys.readouterr()
    return status, seen.out + seen.err


def test_a_safe_config_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(SAFE))
    assert status == 0
    assert "loads and publishes; a block is published when it is asked for a second time" in text
    assert "valkey://user:***@127.0.0.1:6379" in text


def test_an_unsafe_one_fails_with_the_line_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(SAFE | {"kv_load_failure_policy": "fail"}))
    assert status == 1
    assert '"kv_load_failure_policy": "recompute"' in text


def test_it_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "transfer.json"
    file.write_text(json.dumps({"kv_transfer_config": SAFE}))
    assert shown(capsys, str(file))[0] == 0


def test_the_bytes_of_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(SAFE), "--model", "qwen3-8b", "--block-size", "16")
    assert status == 0
    # 144 KiB a token in 16 bits.
    assert f"{144 * 1024 * 16} bytes" in text


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(SAFE), "--json")
    assert status == 0
    assert json.loads(text)["healthy"] is True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nofile.json", "cannot read nofile.json"),
        ("{", "not JSON"),
        ("[]", "cannot read"),
        (json.dumps(SAFE | {"kv_connector_extra_config": {"pol": 1}}), "did you mean 'pool'"),
    ],
)
def test_bad_input_is_one_clear_error(capsys: pytest.CaptureFixture[str], given: str, said: str) -> None:
    status, text = shown(capsys, given)
    assert status == 2
    assert said in text


def test_a_gate_in_front_of_another_connector(capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "kv_connector": "GatedExampleConnector",
        "kv_connector_module_path": "kvferry.engines.vllm.gated",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    status, text = shown(capsys, json.dumps(config))
    assert status == 0
    assert "decides for ExampleConnector" in text
