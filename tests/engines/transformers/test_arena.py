from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.engines.transformers.arena import Arena, RowMemory
from kvferry.engines.transformers.layout import KvLayout

LAYOUT = KvLayout(layers=1, kv_heads=1, width=2, dtype=torch.float32, block_tokens=2)


def name(index: int) -> bytes:
    return b"%032d" % index


def filled(blocks: int, named: int) -> tuple[Arena, list[int]]:
    arena = Arena(blocks, LAYOUT)
    rows = arena.reserve(named)
    assert rows is not None
    for index, row in enumerate(rows):
        arena.insert(name(index), row)
    return arena, rows


def test_match_is_the_longest_prefix() -> None:
    arena, rows = filled(4, 2)
    assert arena.match([name(0), name(1), name(9)]) == rows


def test_a_gap_ends_the_match() -> None:
    arena, rows = filled(4, 3)
    assert arena.match([name(0), name(9), name(2)]) == rows[:1]


def test_reserve_takes_nothing_when_there_is_too_little() -> None:
    arena, _ = filled(4, 2)
    assert (arena.reserve(3), arena.available) == (None, 2)


def test_held_rows_are_never_given_away() -> None:
    arena, rows = filled(4, 2)
    taken = arena.reserve(2)
    assert taken is not None
    assert not set(taken) & set(rows)


def test_released_rows_are_found_again() -> None:
    arena, rows = filled(4, 2)
    arena.release(rows)
    assert arena.match([name(0), name(1)]) == rows


def test_the_tail_of_a_prefix_is_given_up_first() -> None:
    arena, rows = filled(4, 4)
    arena.release(rows)
    arena.reserve(1)
    assert arena.count([name(index) for index in range(4)]) == 3


def test_the_least_recently_used_prefix_is_given_up_first() -> None:
    arena, rows = filled(2, 2)
    arena.release(rows[:1])
    arena.release(rows[1:])
    arena.release(arena.match([name(0)]))
    arena.reserve(1)
    assert arena.count([name(0)]) == 1


def test_rows_without_a_name_become_free() -> None:
    arena = Arena(2, LAYOUT)
    rows = arena.reserve(2)
    assert rows is not None
    arena.release(rows)
    assert (arena.available, arena.cached) == (2, 0)


def test_a_second_row_does_not_take_over_a_name() -> None:
    arena, rows = filled(4, 1)
    other = arena.reserve(1)
    assert other is not None
    assert not arena.insert(name(0), other[0])
    assert arena.match([name(0)]) == rows


def test_releasing_too_often_is_an_error() -> None:
    arena, rows = filled(2, 1)
    arena.release(rows)
    with pytest.raises(ValueError, match="more often"):
        arena.release(rows)


def test_reset_forgets_names() -> None:
    arena, rows = filled(4, 3)
    arena.release(rows[:2])
    assert arena.reset() == 3
    assert (arena.count([name(0)]), arena.available) == (0, 3)


def test_reset_leaves_held_rows_to_their_owner() -> None:
    arena, rows = filled(2, 2)
    arena.reset()
    assert arena.reserve(1) is None
    arena.release(rows)
    assert arena.available == 2


def test_views_are_the_blocks_bytes() -> None:
    arena, rows = filled(2, 1)
    arena.views(rows)[0][:] = bytes(range(LAYOUT.block_bytes))
    assert arena.blocks[rows[0]].numpy().tobytes() == bytes(range(LAYOUT.block_bytes))


def test_row_memory_counts_from_the_prompts_first_block() -> None:
    arena, rows = filled(4, 3)
    memory = RowMemory(arena, 5, tuple(rows))
    memory.views(6, 7)[0][:] = b"\x01" * LAYOUT.block_bytes
    assert bytes(arena.views(rows)[1]) == b"\x01" * LAYOUT.block_bytes


@pytest.mark.parametrize(("start", "stop"), [(4, 6), (5, 9), (7, 6)])
def test_row_memory_refuses_what_was_not_lent(start: int, stop: int) -> None:
    arena, rows = filled(4, 3)
    with pytest.raises(ValueError, match="not within"):
        RowMemory(arena, 5, tuple(rows)).views(start, stop)


def test_an_arena_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        Arena(0, LAYOUT)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 4)), max_size=40))
def test_every_row_is_free_held_or_kept_and_never_two_of_them(steps: list[tuple[int, int, int]]) -> None:
    arena = Arena(6, LAYOUT)
    held: list[list[int]] = []
    for action, which, count in steps:
        if action == 0 and (rows := arena.reserve(count)) is not None:
            held.append(rows)
            for index, row in enumerate(rows):
                arena.insert(name(which + index), row)
        elif action == 1 and (rows := arena.match([name(which + index) for index in range(count)])):
            held.append(rows)
        elif action == 2 and held:
            arena.release(held.pop(which % len(held)))
        elif action == 3 and which == 0:
            arena.reset()
        owned: set[Any] = {row for rows in held for row in rows}
        assert arena.available == arena.num_blocks - len(owned)
