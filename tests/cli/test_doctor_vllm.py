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


TIER: dict[str, Any] = {
    "type": "FerryTier",
    "module_path": "kvferry.engines.vllm.tier",
    "pool": "valkey://user:word@127.0.0.1:6379",
    "publish": "second-touch",
    "revision": "r1",
}


def offloading(tier: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    """vLLM's own offloading with our tier under it."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 32 << 30,
            "secondary_tiers": [{**TIER, **(tier or {})}],
            **extra,
        },
    }


def test_a_tier_under_vllms_offloading_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(offloading()))
    assert status == 0
    assert "a tier under vLLM's own offloading; a block is published when it is asked for a second" in text
    assert "32 GiB of vLLM's host memory, then valkey://user:***@127.0.0.1:6379" in text
    assert "mode on, policy rule" in text
    assert "sha256_cbor" in text


REFUSED = {
    "no tier": (offloading(secondary_tiers=[]), '"type": "FerryTier"'),
    "another tier": (offloading(secondary_tiers=[{"type": "fs", "path": "/x"}]), '"type": "FerryTier"'),
    "no tiering": (offloading(spec_name="CPUOffloadingSpec"), '"spec_name": "TieringOffloadingSpec"'),
    "no host memory": (offloading(cpu_bytes_to_use=0), '"cpu_bytes_to_use": 34359738368'),
    "no module": (offloading({"module_path": None}), '"module_path": "kvferry.engines.vllm.tier"'),
    "another module": (
        offloading({"module_path": "kvferry.engines.vllm.connector"}),
        '"module_path": "kvferry.engines.vllm.tier"',
    ),
    "a lossy codec": (offloading({"codec": "fp8"}), '"codec": "raw"'),
    "a tenant without a secret": (offloading({"tenant": "other"}), '"tenant_secret": "file:PATH"'),
    "a locality that is none": (offloading({"locality": "near"}), '"locality": "REMOTE"'),
    "no role": (offloading() | {"kv_role": None}, '"kv_role": "kv_both"'),
}


@pytest.mark.parametrize(("config", "write"), REFUSED.values(), ids=REFUSED)
def test_what_a_tier_would_be_refused_for_fails_with_the_line_to_write(
    capsys: pytest.CaptureFixture[str], config: dict[str, Any], write: str
) -> None:
    status, text = shown(capsys, json.dumps(config))
    assert status == 1
    assert write in text


SAID = {
    "host memory of its own": (offloading({"host_memory": "1GiB"}), "no host_memory in secondary_tiers[0]"),
    "nothing to share with": (offloading({"pool": None}), '"pool": "valkey://HOST:6379"'),
    "a role": (offloading() | {"kv_role": "kv_consumer"}, '"publish": "never"'),
    "blocks of a size": (offloading({"block_tokens": 32}), "leave block_tokens out"),
    "strict": (offloading({"strict": True}), "leave strict out"),
    "weights that may be a folder": (offloading({"revision": None}), '"revision": "COMMIT-OF-THE-WEIGHTS"'),
    "a gate before a gate": (
        offloading()
        | {
            "kv_connector": "GatedOffloadingConnector",
            "kv_connector_module_path": "kvferry.engines.vllm.gated",
            "kv_load_failure_policy": "recompute",
        },
        '"kv_connector": "OffloadingConnector"',
    ),
}


@pytest.mark.parametrize(("config", "write"), SAID.values(), ids=SAID)
def test_what_is_worth_knowing_of_a_tier_is_said_and_fails_nothing(
    capsys: pytest.CaptureFixture[str], config: dict[str, Any], write: str
) -> None:
    status, text = shown(capsys, json.dumps(config))
    assert status == 0
    assert write in text


def test_a_tier_without_a_revision_needs_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nameless = json.dumps(offloading({"revision": None}))
    assert shown(capsys, nameless, "--model", "qwen3-8b")[0] == 1
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "torch_dtype": "bfloat16",
        "vocab_size": 512,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shown(capsys, nameless, "--model", str(tmp_path))[0] == 0


def test_a_setting_of_a_tier_that_is_unknown_names_the_entry(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, json.dumps(offloading({"pol": "x"})))
    assert status == 2
    assert "secondary_tiers[0].pol" in text
    assert "did you mean 'pool'" in text
