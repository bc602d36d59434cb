"""Shared memory: who is there is known by locks, and nothing is left behind, however a side dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crossing import CLOCK, failing

from kvferry.errors import ConfigError
from kvferry.handoff.transports.shm import SharedListener, dial_shared
from kvferry.handoff.wire.failed import Cut
from kvferry.outcomes import Outcome

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm")

RECEIVER = """
import time
from kvferry.clock import MonotonicClock
from kvferry.handoff.transports.shm import SharedListener
listener = SharedListener(MonotonicClock(), ring_bytes=1 << 16)
print(listener.name, flush=True)
incoming = listener.accept(time.monotonic() + 60)
time.sleep(60)
"""
SENDER = """
import sys, time
from kvferry.clock import MonotonicClock
from kvferry.handoff.transports.shm import dial_shared
outgoing = dial_shared(sys.argv[1], time.monotonic() + 60, MonotonicClock())
print("attached", flush=True)
time.sleep(60)
"""


def gone(path: Path, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not path.exists()


def start(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_receiver_that_closes_removes_its_segment() -> None:
    listener = SharedListener(CLOCK)
    path = Path("/dev/shm") / listener.name
    assert path.exists()
    listener.close()
    listener.close()
    assert not path.exists()


def test_a_killed_receiver_leaves_nothing_and_its_sender_knows() -> None:
    process, name = start(RECEIVER)
    try:
        outgoing = dial_shared(name, CLOCK.now() + 20, CLOCK)
        process.kill()
        failure = failing(lambda: outgoing.offer(b"x" * 300_000, 1, CLOCK.now() + 20))
        assert isinstance(failure, Cut)
        outgoing.close()
        assert gone(Path("/dev/shm") / name)
    finally:
        process.kill()
        process.wait()


def test_a_killed_sender_is_noticed_and_another_may_come() -> None:
    listener = SharedListener(CLOCK)
    process, _ = start("print('started', flush=True)\n" + SENDER, listener.name)
    try:
        incoming = listener.accept(CLOCK.now() + 30)
        process.kill()
        assert isinstance(failing(lambda: incoming.take_offer(CLOCK.now() + 20)), Cut)
        incoming.close()
        again, _ = start("print('started', flush=True)\n" + SENDER, listener.name)
        try:
            listener.accept(CLOCK.now() + 30).close()
        finally:
            again.kill()
            again.wait()
    finally:
        process.kill()
        process.wait()
        listener.close()


def test_two_senders_do_not_share_a_segment() -> None:
    listener = SharedListener(CLOCK)
    process, _ = start("print('started', flush=True)\n" + SENDER, listener.name)
    try:
        incoming = listener.accept(CLOCK.now() + 30)
        failure = failing(lambda: dial_shared(listener.name, CLOCK.now() + 0.3, CLOCK))
        assert failure.cause is Outcome.LATE
        incoming.close()
    finally:
        process.kill()
        process.wait()
        listener.close()


def test_two_receivers_do_not_share_a_name() -> None:
    listener = SharedListener(CLOCK)
    with pytest.raises(ConfigError, match="another receiver"):
        SharedListener(CLOCK, name=listener.name)
    listener.close()


def test_there_is_nobody_at_an_unknown_name() -> None:
    assert isinstance(failing(lambda: dial_shared("kvferry-handoff-none", CLOCK.now() + 1, CLOCK)), Cut)


def test_a_segment_that_even_the_tracker_left_is_swept_by_the_next_receiver() -> None:
    left = Path("/dev/shm") / f"kvferry-handoff-test{os.getpid()}"
    left.write_bytes(bytes(8192))
    os.utime(left, (time.time() - 3600, time.time() - 3600))
    SharedListener(CLOCK).close()
    assert not left.exists()


def test_a_living_receivers_old_segment_is_not_swept() -> None:
    listener = SharedListener(CLOCK)
    path = Path("/dev/shm") / listener.name
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    SharedListener(CLOCK).close()
    assert path.exists()
    listener.close()
