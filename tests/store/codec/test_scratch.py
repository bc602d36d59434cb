from __future__ import annotations

import threading

import numpy as np
import pytest

from kvferry.store.codec import BlockLayout
from kvferry.store.codec.scratch import STEP_NUMBERS, Slots, layer_runs, scratch


@pytest.mark.parametrize("layers", [1, 7, 30, 61])
def test_steps_cover_every_layer_once(layers: int) -> None:
    layout = BlockLayout(layers, 4, 32, 128, "float32")
    covered = [layer for run in layer_runs(layout) for layer in range(run.start, run.stop)]
    assert covered == list(range(layers))


def test_steps_stay_within_the_limit() -> None:
    layout = BlockLayout(61, 4, 32, 128, "float32")
    most = max(run.stop - run.start for run in layer_runs(layout))
    assert most * layout.numbers // layout.layers <= STEP_NUMBERS


def test_a_layer_beyond_the_limit_is_a_step_of_its_own() -> None:
    layout = BlockLayout(3, 64, 256, 128, "float32")
    assert [run.stop - run.start for run in layer_runs(layout)] == [1, 1, 1]


def test_scratch_is_used_again() -> None:
    assert np.shares_memory(scratch("test", (4, 4)), scratch("test", (2, 2)))


def test_slots_are_used_again() -> None:
    slots = Slots(100)
    first = slots.take(3)
    assert slots.take(2) == first[:2]
    assert np.shares_memory(np.frombuffer(slots.take(1)[0], np.uint8), np.frombuffer(first[0], np.uint8))


def test_slots_do_not_overlap() -> None:
    views = Slots(100).take(3)
    for number, view in enumerate(views):
        view[:] = bytes([number]) * 100
    assert [set(view) for view in views] == [{0}, {1}, {2}]


def test_threads_have_slots_of_their_own() -> None:
    slots, others = Slots(8), []
    thread = threading.Thread(target=lambda: others.extend(slots.take(1)))
    thread.start()
    thread.join()
    mine = np.frombuffer(slots.take(1)[0], np.uint8)
    assert not np.shares_memory(mine, np.frombuffer(others[0], np.uint8))
