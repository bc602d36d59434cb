from __future__ import annotations

import threading
import time

from kvferry.engines.transformers.mailbox import Mailbox


def test_items_come_in_order() -> None:
    box = Mailbox[int]()
    box.put(1)
    box.put(2)
    assert box.take() == [1, 2]


def test_an_item_ends_a_wait() -> None:
    box = Mailbox[int]()
    threading.Timer(0.02, box.put, (1,)).start()
    assert box.take(20) == [1]


def test_a_wake_up_ends_a_wait() -> None:
    box = Mailbox[int]()
    threading.Timer(0.02, box.wake).start()
    began = time.monotonic()
    box.take(60)
    assert time.monotonic() - began < 30


def test_a_wake_up_before_the_wait_is_not_lost() -> None:
    box = Mailbox[int]()
    box.wake()
    began = time.monotonic()
    box.take(60)
    assert time.monotonic() - began < 30


def test_closing_ends_a_wait() -> None:
    box = Mailbox[int]()
    threading.Timer(0.02, box.close, ("done",)).start()
    began = time.monotonic()
    box.take(60)
    assert time.monotonic() - began < 30


def test_a_closed_box_takes_nothing_in() -> None:
    box = Mailbox[int]()
    box.close("done")
    assert not box.put(1)


def test_what_was_inside_can_still_be_taken() -> None:
    box = Mailbox[int]()
    box.put(1)
    box.close("done")
    assert box.take() == [1]


def test_the_first_reason_for_closing_stays() -> None:
    box = Mailbox[int]()
    box.close("first")
    box.close("second")
    assert box.closed == "first"
