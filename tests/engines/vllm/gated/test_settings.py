"""What stands under `kvferry` in a connector's extra config, and what is left for the other connector."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.engines.vllm.gated.settings import cache_settings, inner_extra, read_settings
from kvferry.errors import ConfigError


def test_the_gate_is_set_as_everywhere() -> None:
    config = read_settings({"kvferry": {"gate": {"mode": "shadow", "margin": "5ms"}}}, env={}).config
    assert (config.gate.mode, config.gate.margin) == ("shadow", 0.005)


def test_without_settings_it_is_on() -> None:
    assert read_settings({"shared_storage_path": "/x"}, env={}).config.gate.mode == "on"


def test_the_environment_counts_too() -> None:
    assert read_settings({}, env={"KVFERRY_GATE__MODE": "canary"}).config.gate.mode == "canary"


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'gate\.mode'"):
        read_settings({"kvferry": {"gate": {"mod": "on"}}}, env={})


@pytest.mark.parametrize(
    "setting", [{"pool": "valkey://h:1"}, {"publish": "all"}, {"timeouts": {"store": "1s"}}]
)
def test_a_setting_that_moves_blocks_is_an_error(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect in front of another connector"):
        read_settings({"kvferry": setting}, env={})


def test_the_same_setting_in_the_environment_is_meant_for_others() -> None:
    assert read_settings({}, env={"KVFERRY_PUBLISH": "all"}).config.publish == "all"


def test_an_error_says_where_the_setting_stands() -> None:
    with pytest.raises(ConfigError, match=r"kv_connector_extra_config\.kvferry\.gate\.margin"):
        read_settings({"kvferry": {"gate": {"margin": "5"}}}, env={})


def test_settings_that_are_no_object_say_what_to_write() -> None:
    with pytest.raises(ConfigError, match="is not an object; write"):
        read_settings({"kvferry": "on"}, env={})


def test_the_other_connector_gets_the_rest() -> None:
    extra = {"kvferry": {}, "inner_module_path": "m", "lmcache.mp.port": 5555}
    assert inner_extra(extra) == {"lmcache.mp.port": 5555}


def test_limits_reach_the_gate() -> None:
    config = read_settings({"kvferry": {"limits": {"replica_loads": 2}, "timeouts": {"load": "3s"}}}, env={})
    settings = cache_settings(config.config, block_tokens=16, bytes_per_token=8)
    assert (settings.replica_loads, settings.load_seconds) == (2, 3.0)
