from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli.doctor import examine
from kvferry.cli.main import main
from kvferry.clock import VirtualClock
from kvferry.config import Config
from kvferry.store.open import open_tier


class JumpingClock(VirtualClock):
    """The wall clock is set back while someone sleeps."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.jump_wall(-5.0)


def statuses(config: Config) -> dict[str, str]:
    return {finding.check: finding.status for finding in examine(config, VirtualClock())}


def test_nothing_configured_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True


def test_a_pool_that_refuses_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "pool=valkey://127.0.0.1:1", "--json"]) == 1
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["pool"]["status"] == "broken"
    assert "valkey://127.0.0.1:1" in findings["pool"]["detail"]


def test_a_folder_pool_answers(tmp_path: Path) -> None:
    open_tier(f"files://{tmp_path}").close()
    (pool,) = [
        one for one in examine(Config(pool=f"files://{tmp_path}"), VirtualClock()) if one.check == "pool"
    ]
    assert pool.status == "ok"
    assert "answered in" in pool.detail


def test_a_folder_that_is_no_pool_yet_is_left_alone(tmp_path: Path) -> None:
    assert statuses(Config(pool=f"files:{tmp_path}"))["pool"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_broken_and_not_made(tmp_path: Path) -> None:
    assert statuses(Config(disk=f"files://{tmp_path / 'x'}"))["disk"] == "broken"
    assert not (tmp_path / "x").exists()


def test_a_pool_without_a_secret_is_noted(tmp_path: Path) -> None:
    assert statuses(Config(pool=f"files://{tmp_path}"))["tenant_secret"] == "note"


def test_a_secret_that_is_not_there_is_broken() -> None:
    assert statuses(Config(tenant_secret="env:NO_SUCH_VARIABLE_HERE"))["tenant_secret"] == "broken"


def test_more_host_memory_than_the_machine_has_is_broken() -> None:
    assert statuses(Config(host_memory=2**60))["host_memory"] == "broken"


def test_a_wall_clock_that_jumps_is_noted() -> None:
    findings = {finding.check: finding.status for finding in examine(Config(), JumpingClock())}
    assert findings["clock"] == "note"


def test_a_password_is_not_shown() -> None:
    shown = repr(list(examine(Config(pool="valkey://me:sesame@127.0.0.1:1"), VirtualClock())))
    assert "sesame" not in shown


@pytest.mark.parametrize("spelling", ["--file", "--config"])
def test_a_file_of_settings_has_two_spellings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spelling: str
) -> None:
    (tmp_path / "k.yaml").write_text("no_such_setting: 1\n")
    assert main(["doctor", spelling, str(tmp_path / "k.yaml")]) == 2
    assert "no_such_setting" in capsys.readouterr().err
