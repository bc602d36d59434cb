"""Which settings are safe to run, and what is said of the others. Needs no vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.engines.vllm.checks import Role, check_engine, check_transfer, read_extra
from kvferry.errors import ConfigError

SAFE: dict[str, Any] = {
    "kv_connector": "FerryConnector",
    "kv_connector_module_path": "kvferry.engines.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"pool": "valkey://127.0.0.1:6379"},
}
ENGINE: dict[str, Any] = {
    "hash_algorithm": "sha256_cbor",
    "prefix_caching": True,
    "speculative": False,
    "context_parallel": 1,
}


def of(**changes: Any) -> list[str]:
    return [finding.what for finding in check_transfer(SAFE | changes) if finding.disables]


def test_a_safe_config_has_nothing_said_of_it() -> None:
    assert check_transfer(SAFE) == []


def test_vllms_own_default_of_dying_with_a_load_is_refused() -> None:
    config = {name: value for name, value in SAFE.items() if name != "kv_load_failure_policy"}
    (finding,) = check_transfer(config)
    assert finding.disables
    assert '"kv_load_failure_policy": "recompute"' in finding.write


def test_dying_requests_may_be_asked_for() -> None:
    extra = {"pool": "valkey://127.0.0.1:6379", "allow_fail": True}
    assert of(kv_load_failure_policy="fail", kv_connector_extra_config=extra) == []


def test_allow_fail_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="allow_fail: 'yes'"):
        read_extra({"allow_fail": "yes"})


def test_an_unknown_setting_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'pol'; did you mean 'pool'"):
        check_transfer(SAFE | {"kv_connector_extra_config": {"pol": "valkey://127.0.0.1:6379"}})


def test_another_connector_is_told_apart() -> None:
    assert any(
        "kv_connector is 'LMCacheConnectorV1'" in what for what in of(kv_connector="LMCacheConnectorV1")
    )


def test_a_role_that_does_not_exist_is_refused() -> None:
    assert any("kv_role is 'both'" in what for what in of(kv_role="both"))


def test_nothing_to_share_with_is_said_and_does_no_harm() -> None:
    (finding,) = check_transfer(SAFE | {"kv_connector_extra_config": {}})
    assert not finding.disables


def test_a_lossy_codec_is_refused() -> None:
    extra = {"pool": "valkey://127.0.0.1:6379", "codec": "int8"}
    assert any("codec is int8" in what for what in of(kv_connector_extra_config=extra))


def test_strict_is_said() -> None:
    extra = {"pool": "valkey://127.0.0.1:6379", "strict": True}
    (finding,) = check_transfer(SAFE | {"kv_connector_extra_config": extra})
    assert not finding.disables
    assert "does not start" in finding.what


def test_a_sound_engine_has_nothing_said_of_it() -> None:
    assert check_engine(**ENGINE) == []


@pytest.mark.parametrize(
    ("change", "write"),
    [
        ({"hash_algorithm": "sha256"}, "--prefix-caching-hash-algo sha256_cbor"),
        ({"hash_algorithm": "xxhash_cbor"}, "--prefix-caching-hash-algo sha256_cbor"),
        ({"prefix_caching": False}, "--enable-prefix-caching"),
        ({"speculative": True}, "--speculative-config"),
        ({"context_parallel": 2}, "--decode-context-parallel-size 1"),
    ],
)
def test_what_could_give_wrong_tokens_disables(change: dict[str, Any], write: str) -> None:
    (finding,) = check_engine(**(ENGINE | change))
    assert finding.disables
    assert write in finding.write


@pytest.mark.parametrize(
    ("role", "loads", "stores"),
    [("kv_producer", False, True), ("kv_consumer", True, False), ("kv_both", True, True)],
)
def test_roles(role: str, loads: bool, stores: bool) -> None:
    assert Role.of(role) == Role(loads, stores)
