"""What `kvferry demo` refuses before it starts a replica; tests/e2e plays the demo."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvferry.cli.main import main


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_a_pool_that_does_not_answer_ends_it_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("valkey")
    pool = f"valkey://me:hidden@127.0.0.1:{free_port()}/0"
    assert main(["demo", "--pool", pool, "--run-dir", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert "no connection to 127.0.0.1" in told
    assert "start it, or leave --pool away" in told
    assert "hidden" not in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pool", ["nonsense", "nope://x"])
def test_a_pool_of_no_known_kind_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pool: str
) -> None:
    assert main(["demo", "--pool", pool, "--run-dir", str(tmp_path / "run")]) == 2
    assert "scheme" in capsys.readouterr().err


def test_the_demo_with_vllm_takes_no_pool(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--engine", "vllm", "--pool", "files:///x", "--run-dir", str(tmp_path)]) == 2
    assert "--pool" in capsys.readouterr().err
