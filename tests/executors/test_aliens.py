"""Which other namespaces a pool holds."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kvferry.errors import TierTimeout
from kvferry.executors.aliens import Aliens
from kvferry.keys.pool import pool_key

OURS, THEIRS = b"o" * 32, b"t" * 32
SECRET = b"s" * 32


class Pool:
    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.now = 0.0
        self.named: Mapping[bytes, str] = {THEIRS: "dtype"}

    def read(self, ours: bytes) -> Mapping[bytes, str]:
        self.asked += 1
        if self.fails:
            raise TierTimeout("no answer")
        return self.named

    def aliens(self) -> Aliens:
        return Aliens(SECRET, self.read, lambda: self.now, refresh_seconds=30.0)


def test_they_are_read_once_a_while() -> None:
    pool = Pool()
    aliens = pool.aliens()
    for now, asked in ((0.0, 1), (29.0, 1), (31.0, 2)):
        pool.now = now
        assert aliens.others(OURS) == [(THEIRS, "dtype")]
        assert pool.asked == asked


def test_a_pool_that_does_not_tell_is_not_asked_at_every_lookup() -> None:
    pool = Pool()
    aliens = pool.aliens()
    aliens.others(OURS)
    pool.fails, pool.now = True, 31.0
    for _ in range(5):
        assert aliens.others(OURS) == [(THEIRS, "dtype")], "what was known stays known"
    assert pool.asked == 2


def test_while_one_thread_reads_the_others_go_on() -> None:
    pool = Pool()
    inside, go_on = threading.Event(), threading.Event()

    def slow(ours: bytes) -> Mapping[bytes, str]:
        inside.set()
        go_on.wait(10.0)
        return pool.named

    aliens = Aliens(SECRET, slow, lambda: 0.0)
    reader = threading.Thread(target=aliens.others, args=(OURS,))
    reader.start()
    assert inside.wait(10.0)
    assert aliens.others(OURS) == []
    go_on.set()
    reader.join(10.0)
    assert aliens.others(OURS) == [(THEIRS, "dtype")]


def test_there_are_only_a_few() -> None:
    pool = Pool()
    pool.named = {bytes([i]) * 32: "weights" for i in range(100)}
    assert len(pool.aliens().others(OURS)) == 8


def test_keys_are_those_of_the_other_namespace_under_our_secret() -> None:
    hashes = [b"h" * 32, b"i" * 32]
    assert Pool().aliens().keys(THEIRS, hashes) == [pool_key(SECRET, THEIRS, h) for h in hashes]
