"""What `kvferry replica` refuses before it loads a model."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvferry.cli.main import main

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "starlette", "uvicorn", "aiohttp")),
    reason="needs the extras transformers and gateway",
)


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be loaded: who comes as far as loading one fails otherwise than expected."""
    import kvferry.engines.transformers.resolve as resolve

    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("a model was asked for")

    monkeypatch.setattr(resolve, "resolve_model", refuse)


@pytest.mark.parametrize("port", ["99999", "65536"])
def test_a_port_that_cannot_be(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert main(["replica", "--port", port]) == 2
    assert f"--port {port}: write 1 to 65535" in capsys.readouterr().err


def test_a_negative_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replica", "--port=-1"]) == 2
    assert "--port -1: write 1 to 65535" in capsys.readouterr().err


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["replica", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["--config", "--file"])
def test_a_file_of_settings_has_two_spellings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spelling: str
) -> None:
    (tmp_path / "k.yaml").write_text("no_such_setting: 1\n")
    assert main(["replica", spelling, str(tmp_path / "k.yaml")]) == 2
    assert "no_such_setting" in capsys.readouterr().err
