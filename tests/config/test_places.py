from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.config import cache_dir


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"KVFERRY_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/kvferry")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache" / "kvferry"),
        ({}, Path.home() / ".cache" / "kvferry"),
    ],
)
def test_the_cache_folder(env: dict[str, str], expected: Path) -> None:
    assert cache_dir(env) == expected
