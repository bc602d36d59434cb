"""What a user gets wrong: one line that says what to write instead, exit status 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.config import child_environment


def kvferry(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvferry", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=child_environment(settings=False),
    )


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("gate.margn=5ms", "did you mean 'gate.margin'"),
        ("gate.margin=5", "gate.margin"),
        ("gate.margin=5GiB", "gate.margin"),
        ("host_memory=5ms", "host_memory"),
        ("block_tokens=many", "block_tokens"),
        ("gate.mode=maybe", "off, shadow, canary"),
        ("pool=ftp://somewhere", "valkey://HOST:PORT"),
        ("pool=valkey://host:port/0", "valkey://host:6379/0"),
        ("pool=files://", "files:///DIR"),
        ("tenant=another", "tenant_secret"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(setting: str, told: str) -> None:
    # A model that does not exist: settings are looked at before anything heavy is.
    ended = kvferry("replica", "--model", "/no/model", "--set", setting)
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert told in line


def test_a_wrong_key_in_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("gate:\n  margin: 5ms\n  holdout: 0.1\n")
    ended = kvferry("config", "show", "--file", str(file))
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"{file}:3" in line
    assert "gate.holdout" in line


def test_a_wrong_variable_is_told_by_its_name() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kvferry", "config", "show"],
        capture_output=True,
        text=True,
        timeout=60,
        env=child_environment({"KVFERRY_GATE__MARGIN": "fast"}, settings=False),
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "KVFERRY_GATE__MARGIN" in line
