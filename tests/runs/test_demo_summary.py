"""Which requests of a demo count in a path's distribution."""

from __future__ import annotations

import pytest

from kvferry.runs.demo_summary import LINK, is_free_choice, left_out


@pytest.mark.parametrize(
    ("path", "stage", "counts"),
    [
        ("cold", "pool", True),
        ("cold", LINK, False),
        ("pool_hit", "pool", True),
        ("pool_hit", "return", True),
        ("pool_hit", "turn", False),
        ("declined", "turn", True),
        ("declined", "policy rule", True),
        ("cold", "policy never", False),
        ("pool_hit", "policy always", False),
    ],
)
def test_forced_and_throttled_requests_stand_apart(path: str, stage: str, counts: bool) -> None:
    assert is_free_choice(path, stage) is counts


@pytest.mark.parametrize(
    ("path", "stage", "why"),
    [
        ("pool_hit", LINK, "measured the link"),
        ("declined", "policy never", "obeyed a forced policy"),
        ("pool_hit", "turn", "loaded over a throttled link"),
        ("declined", "turn", None),
    ],
)
def test_why_a_request_stands_apart_is_told(path: str, stage: str, why: str | None) -> None:
    assert left_out(path, stage) == why
