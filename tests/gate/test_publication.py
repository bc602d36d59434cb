"""What is worth publishing: permission first, then popularity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.gate.publication import Publication, Touches

KEYS = [bytes([i]) * 32 for i in range(8)]


def ends(
    policy: str, *, touches: int = 1, boundary: int | None = None, data_class: str = "default"
) -> list[int]:
    publication = Publication(policy, ["default", "public"])
    return [
        publication.end_block(KEYS, block_tokens=16, boundary_tokens=boundary, data_class=data_class)
        for _ in range(touches)
    ]


@pytest.mark.parametrize(
    ("policy", "boundary", "expected"),
    [
        ("never", None, [0, 0, 0]),
        ("never", 100, [0, 0, 0]),
        ("declared", None, [0, 0, 0]),
        ("declared", 50, [3, 3, 3]),
        ("declared", 15, [0, 0, 0]),
        ("declared", 10_000, [8, 8, 8]),
        ("second-touch", None, [0, 8, 8]),
        ("second-touch", 50, [0, 3, 3]),
        ("all", None, [8, 8, 8]),
        ("all", 50, [3, 3, 3]),
    ],
)
def test_every_policy(policy: str, boundary: int | None, expected: list[int]) -> None:
    assert ends(policy, touches=3, boundary=boundary) == expected


@pytest.mark.parametrize("policy", ["declared", "second-touch", "all"])
def test_permission_comes_before_popularity(policy: str) -> None:
    assert ends(policy, touches=5, boundary=128, data_class="secret") == [0] * 5


def test_what_may_not_be_published_is_not_even_counted() -> None:
    publication = Publication("second-touch", ["default"])
    ask = {"block_tokens": 16, "boundary_tokens": None}
    publication.end_block(KEYS, data_class="secret", **ask)  # type: ignore[arg-type]
    assert publication.end_block(KEYS, data_class="default", **ask) == 0  # type: ignore[arg-type]


def test_blocks_behind_the_boundary_are_not_counted() -> None:
    publication = Publication("second-touch", ["default"])
    publication.end_block(KEYS, block_tokens=16, boundary_tokens=32, data_class="default")
    assert publication.end_block(KEYS, block_tokens=16, boundary_tokens=None, data_class="default") == 2


def test_a_shared_head_is_published_and_the_new_tail_is_not() -> None:
    touches = Touches()
    other = KEYS[:3] + [bytes([100 + i]) * 32 for i in range(5)]
    assert touches.touch(KEYS) == 0
    assert touches.touch(other) == 3
    assert touches.touch(KEYS) == 8


def test_memory_is_bounded_and_forgetting_only_delays() -> None:
    touches = Touches(most=10)
    for i in range(100):
        touches.touch([i.to_bytes(32, "big")])
    assert 5 <= len(touches) <= 11
    assert touches.touch([(99).to_bytes(32, "big")]) == 1
    assert touches.touch([(0).to_bytes(32, "big")]) == 0


@given(st.lists(st.integers(0, 7), max_size=30))
def test_what_is_remembered_of_a_chain_is_a_prefix(lengths: list[int]) -> None:
    touches = Touches(most=10)
    for number, length in enumerate(lengths):
        touches.touch([*KEYS[:length], bytes([200 + number]) * 32])
        seen = [key in touches._young or key in touches._old for key in KEYS]
        assert seen == sorted(seen, reverse=True)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="'sometimes'"):
        Publication("sometimes", ["default"])
