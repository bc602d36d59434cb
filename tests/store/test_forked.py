"""A child of fork has no thread of its parent's."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from kvferry.store.framed import FramedTier
from kvferry.store.memory import MemoryTier

SIZE = 100_000


class Payload(bytearray):
    """Memory that can be watched."""


def put(framed: FramedTier, first: int) -> list[weakref.ref[Payload]]:
    payloads = [Payload(SIZE) for _ in range(8)]
    keys = [b"%032d" % (first + n) for n in range(8)]
    framed.put(keys, [memoryview(payload) for payload in payloads], 5.0)
    return [weakref.ref(payload) for payload in payloads]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_payload() -> None:
    framed = FramedTier(MemoryTier(8 << 20, watch_seconds=None), b"n" * 32)
    put(framed, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            kept = put(framed, 100)
            put(framed, 200)  # after this the helper's thread, if there is one, has let go of the first batch
            status = int(any(payload() is not None for payload in kept))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
