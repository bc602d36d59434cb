from __future__ import annotations

import threading

import pytest
from crossing import CLOCK, failing

from kvferry.handoff.wire.failed import Cut
from kvferry.handoff.wire.layers import Layers
from kvferry.outcomes import Outcome


def test_a_layer_is_waited_for() -> None:
    layers = Layers(3, CLOCK)
    passed = []
    thread = threading.Thread(target=lambda: passed.append(layers.wait(1, CLOCK.now() + 10)))
    thread.start()
    layers.advance(1)
    assert thread.is_alive()
    layers.advance(2)
    thread.join(10)
    assert passed == [None]


def test_who_waits_hears_of_the_failure() -> None:
    layers = Layers(3, CLOCK)
    layers.advance(1)
    layers.fail(Cut("gone"))
    layers.advance(3)
    layers.wait(0, CLOCK.now() + 1)
    assert str(failing(lambda: layers.wait(1, CLOCK.now() + 1))) == "gone"
    assert layers.ready == 1


def test_nothing_is_waited_for_beyond_the_deadline() -> None:
    assert failing(lambda: Layers(1, CLOCK).wait(0, CLOCK.now() + 0.01)).cause is Outcome.LATE


def test_a_whole_hand_off_cannot_fail_any_more() -> None:
    layers = Layers(2, CLOCK)
    layers.advance(2)
    layers.fail(Cut("the farewell was cut"))
    assert layers.failure is None


def test_there_are_no_more_layers_than_there_are() -> None:
    with pytest.raises(ValueError, match="2 of 1"):
        Layers(1, CLOCK).advance(2)
