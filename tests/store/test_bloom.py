"""The filter remembers, forgets by generations, and errs no more than it says."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import FormatError
from kvferry.store.bloom import GhostFilter, bits_of, error_rate, mask_of, pair_bytes


def keys_from(start: int, count: int) -> list[bytes]:
    return [hashlib.sha256(b"%d" % i).digest() for i in range(start, start + count)]


def fresh(keys: int) -> GhostFilter:
    return GhostFilter(memoryview(bytearray(pair_bytes(keys))), keys)


@given(st.binary(min_size=32, max_size=32))
def test_bits_and_mask_agree(key: bytes) -> None:
    assert mask_of(key) == sum(1 << bit for bit in set(bits_of(key)))


def test_knows_what_was_added() -> None:
    ghosts, keys = fresh(1000), keys_from(0, 500)
    ghosts.add(keys)
    assert all(ghosts.knows(keys))


def test_remembers_at_least_one_generation() -> None:
    ghosts, keys = fresh(1000), keys_from(0, 5000)
    ghosts.add(keys)
    assert all(ghosts.knows(keys[-1000:]))


def test_forgets_what_is_two_generations_old() -> None:
    ghosts, keys = fresh(1000), keys_from(0, 5000)
    ghosts.add(keys)
    assert sum(ghosts.knows(keys[:2000])) < 100


def test_strangers_pass_no_more_often_than_stated() -> None:
    ghosts = fresh(4000)
    ghosts.add(keys_from(0, 7999))
    wrong = sum(ghosts.knows(keys_from(1_000_000, 40_000))) / 40_000
    assert wrong < 1.5 * 2 * error_rate(4) < 0.02


def test_two_filters_over_one_buffer_agree() -> None:
    buffer = memoryview(bytearray(pair_bytes(100)))
    first, second = GhostFilter(buffer, 100), GhostFilter(buffer, 100)
    first.add(keys_from(0, 10))
    assert all(second.knows(keys_from(0, 10)))


def test_a_buffer_of_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match="not a ghost filter"):
        GhostFilter(memoryview(bytearray(b"x" * pair_bytes(100))), 100)


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(FormatError, match="bytes"):
        GhostFilter(memoryview(bytearray(100)), 100)
