from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cli.config import _yaml
from kvferry.cli.main import main
from kvferry.config import Config, load
from kvferry.config.documents import read_yaml
from kvferry.config.fields import fields_of


def test_the_file_may_be_called_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text("ttl: 2h\n")
    assert main(["config", "show", "--config", str(tmp_path / "k.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ttl"]["shown"] == "2h"


def test_every_value_is_shown_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "k.yaml").write_text("ttl: 2h\n")
    monkeypatch.setenv("KVFERRY_BLOCK_TOKENS", "16")
    assert (
        main(["config", "show", "--file", str(tmp_path / "k.yaml"), "--set", "gate.margin=5ms", "--json"])
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["ttl"]["value"] == 7200
    assert shown["ttl"]["origin"] == {"kind": "file", "where": f"{tmp_path / 'k.yaml'}:1"}
    assert shown["block_tokens"]["origin"]["kind"] == "env"
    assert shown["gate.margin"]["shown"] == "5ms"
    assert shown["gate.mode"]["origin"]["kind"] == "default"


def test_what_is_shown_can_be_saved_and_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overrides = ["gate.mode=off", "pool=valkey://h:1/0", "host_memory=16GiB", "shareable_data_classes=a,b c"]
    assert main(["config", "show", *(word for one in overrides for word in ("--set", one))]) == 0
    saved = tmp_path / "k.yaml"
    saved.write_text(capsys.readouterr().out)
    assert load(saved, env={}).config == load(env={}, overrides=overrides).config


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["config", "show", "--set", "tenant_secret=sesame", "--set", "pool=valkey://:sesame@h:1"]) == 0
    )
    assert "sesame" not in capsys.readouterr().out


@given(st.text(min_size=1, max_size=20))
def test_any_text_reads_back_from_the_yaml_shown(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(f"tenant: {_yaml(fields_of(Config)['tenant'], text)}\n", encoding="utf-8")
    assert [raw for _, raw, _ in read_yaml(path)] == [text]
