from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.config import Config, public_command, public_values, resolve_secret
from kvferry.errors import ConfigError


def test_no_secret_is_none() -> None:
    assert resolve_secret(Config(), env={}) is None


def test_a_literal_secret_is_its_text() -> None:
    assert resolve_secret(Config(tenant_secret="sesame"), env={}) == b"sesame"


def test_a_secret_in_a_file_loses_one_line_break(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"se\nsame\n\r\n")
    assert resolve_secret(Config(tenant_secret=f"file:{tmp_path / 's'}"), env={}) == b"se\nsame\n"


def test_a_secret_in_the_environment_is_read() -> None:
    assert resolve_secret(Config(tenant_secret="env:S"), env={"S": "sesame"}) == b"sesame"


@pytest.mark.parametrize("setting", ["env:NOT_SET", "file:/nowhere/at/all"])
def test_a_secret_that_is_not_there_is_an_error(setting: str) -> None:
    with pytest.raises(ConfigError, match="tenant_secret"):
        resolve_secret(Config(tenant_secret=setting), env={})


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"\n")
    with pytest.raises(ConfigError, match="empty"):
        resolve_secret(Config(tenant_secret=f"file:{tmp_path / 's'}"), env={})


@pytest.mark.parametrize(
    ("setting", "shown"), [("sesame", "***"), ("file:/etc/secret", "file:/etc/secret"), ("env:S", "env:S")]
)
def test_only_the_place_of_a_secret_is_shown(setting: str, shown: str) -> None:
    assert public_values(Config(tenant_secret=setting))["tenant_secret"] == shown


def test_a_password_in_a_url_is_hidden() -> None:
    assert public_values(Config(pool="valkey://me:p@ss@h:1/0"))["pool"] == "valkey://me:***@h:1/0"


def test_a_recorded_command_holds_no_secret() -> None:
    command = [
        "kvferry",
        "demo",
        "--set",
        "tenant_secret=sesame",
        "--pool=valkey://:sesame@h:1",
        "--set=ttl=1h",
    ]
    assert public_command(command) == [
        "kvferry", "demo", "--set", "tenant_secret=***", "--pool=valkey://:***@h:1", "--set=ttl=1h"
    ]  # fmt: skip
