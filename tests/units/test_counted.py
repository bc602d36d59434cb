"""One is singular, everything else is plural."""

from __future__ import annotations

import pytest

from kvferry.units import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bad rows"), (1, "1 bad row"), (2, "2 bad rows"), (3000, "3,000 bad rows")]
)
def test_one_is_singular(count: int, text: str) -> None:
    assert counted(count, "bad row") == text
