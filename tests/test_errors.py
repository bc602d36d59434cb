from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kvferry import errors
from kvferry.errors import MissingExtra, pip_install


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    errors._origin.cache_clear()
    yield
    errors._origin.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, direct_url: object) -> None:
    class Installed:
        def read_text(self, _: str) -> str | None:
            return None if direct_url is None else json.dumps(direct_url)

    monkeypatch.setattr(metadata, "distribution", lambda _: Installed())


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'kvferry[a,b]'"),
        ({"url": "https://host/kvferry.git", "vcs_info": {}}, "pip install 'kvferry[a,b]'"),
        ({"url": "file:///wheels/kvferry.whl", "archive_info": {}}, "pip install 'kvferry[a,b]'"),
        ({"url": "file:///my%20clone", "dir_info": {}}, "pip install '/my clone[a,b]'"),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "pip install -e '/clone[a,b]'"),
    ],
)
def test_the_command_names_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, direct_url: object, command: str
) -> None:
    installed(monkeypatch, direct_url)
    assert pip_install("a", "b") == command


def test_a_clone_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    assert pip_install("a") == f"pip install -e '{Path(__file__).resolve().parents[1]}[a]'"


def test_a_missing_part_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert str(MissingExtra("this", "fast")) == "this needs an optional part: pip install 'kvferry[fast]'"
