from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvferry.config import Config, GateSettings, LimitSettings, TimeoutSettings
from kvferry.config.fields import fields_of, read_text, show_value
from kvferry.errors import ConfigError


@pytest.mark.parametrize(
    ("struct", "values", "name"),
    [
        (GateSettings, {"margin": 0.0}, "gate.margin"),
        (GateSettings, {"canary_share": 1.01}, "gate.canary_share"),
        (GateSettings, {"load_quantile": 1.0}, "gate.load_quantile"),
        (GateSettings, {"recompute_quantile": 0.0}, "gate.recompute_quantile"),
        (GateSettings, {"mode": "sometimes"}, "gate.mode"),
        (LimitSettings, {"replica_loads": 0}, "limits.replica_loads"),
        (TimeoutSettings, {"load": "5ms"}, "timeouts.load"),
        (TimeoutSettings, {"backoff_first": 31.0}, "timeouts.backoff_first"),
        (Config, {"block_tokens": 0}, "block_tokens"),
        (Config, {"tenant": ""}, "tenant"),
        (Config, {"pool": "somewhere"}, "pool"),
        (Config, {"gate": None}, "gate"),
    ],
)
def test_a_value_made_in_code_meets_the_same_bounds(struct: Any, values: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\\b"):
        struct(**values)


def test_settings_replaced_at_run_time_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"gate\.margin"):
        msgspec.structs.replace(GateSettings(), margin=-1.0)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().block_tokens = 64  # type: ignore[misc]


def test_every_setting_says_what_it_does() -> None:
    assert [path for path, field in fields_of(Config).items() if not field.doc] == []


@pytest.mark.parametrize("path", [path for path, field in fields_of(Config).items() if field.kind != "group"])
def test_every_default_reads_back_as_it_is_shown(path: str) -> None:
    field = fields_of(Config)[path]
    assert read_text(field, show_value(field, field.default), path) == field.default


def test_secrets_stay_out_of_the_repr() -> None:
    text = repr(Config(tenant_secret="sesame", pool="valkey://me:sesame@h:1"))
    assert "sesame" not in text
