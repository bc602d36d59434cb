"""A server that is slow, in three ways: few bytes a second, late with every answer, and at a standstill."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvferry.clock import MonotonicClock
from kvferry.errors import TierTimeout
from kvferry.store.backoff import BackedOff, State
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Put
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

from ..store.conftest import Blocks

NAMESPACE = b"n" * 32
COUNT = 20


class Trickle:
    """Passes what a server says in pieces, each `pause_seconds` after the one before."""

    def __init__(self, port: int, *, piece_bytes: int, pause_seconds: float) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.piece_bytes, self.pause_seconds = piece_bytes, pause_seconds
        self._target = port
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open += [client, server]
            for ends in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, slowly: bool) -> None:
        try:
            while data := source.recv(self.piece_bytes if slowly else 65536):
                if slowly:
                    time.sleep(self.pause_seconds)
                target.sendall(data)
        except OSError:
            return


@pytest.fixture
def trickle(server: EmbeddedServer) -> Iterator[Trickle]:
    trickle = Trickle(server.port, piece_bytes=65536, pause_seconds=0.0)
    yield trickle
    trickle.close()


@pytest.fixture
def tier(trickle: Trickle) -> Iterator[BackedOff]:
    tier = BackedOff(ValkeyTier("127.0.0.1", trickle.port, ghost_keys=1000), MonotonicClock())
    yield tier
    tier.close()


@pytest.fixture
def framed(tier: BackedOff, blocks: Blocks) -> FramedTier:
    framed = FramedTier(tier, NAMESPACE)
    keys = [blocks.key(n) for n in range(COUNT)]
    assert set(framed.put(keys, [blocks.payload(n) for n in range(COUNT)], 10.0)) == {Put.STORED}
    return framed


def read(framed: FramedTier, blocks: Blocks, timeout: float) -> tuple[bytes, list[memoryview]]:
    into = [blocks.blank() for _ in range(COUNT)]
    return framed.get([blocks.key(n) for n in range(COUNT)], into, timeout), into


def test_what_a_slow_link_brings_before_the_deadline_is_used(
    framed: FramedTier, tier: BackedOff, trickle: Trickle, blocks: Blocks
) -> None:
    trickle.pause_seconds = 0.2
    statuses, into = read(framed, blocks, 3.0)
    good = statuses.count(Got.OK)
    assert 0 < good < COUNT
    assert statuses == bytes([Got.OK] * good + [Got.LATE] * (COUNT - good))
    assert all(into[n] == blocks.payload(n) for n in range(good))
    # Slow is not gone.
    assert tier.state is State.UP


def test_with_time_enough_a_slow_link_brings_everything(
    framed: FramedTier, trickle: Trickle, blocks: Blocks
) -> None:
    trickle.pause_seconds = 0.01
    statuses, into = read(framed, blocks, 60.0)
    assert set(statuses) == {Got.OK}
    assert all(into[n] == blocks.payload(n) for n in range(COUNT))


def test_replies_in_crumbs_are_read_whole(framed: FramedTier, trickle: Trickle, blocks: Blocks) -> None:
    trickle.piece_bytes = 333
    statuses, into = read(framed, blocks, 60.0)
    assert set(statuses) == {Got.OK}
    assert all(into[n] == blocks.payload(n) for n in range(COUNT))


def test_a_server_that_answers_late_costs_its_deadline_and_is_left_alone(
    framed: FramedTier, tier: BackedOff, trickle: Trickle, blocks: Blocks
) -> None:
    trickle.pause_seconds = 0.5
    with pytest.raises(TierTimeout):
        framed.find([blocks.key(0)], 0.1)
    assert tier.state is State.RESTING


def test_a_late_answer_is_not_taken_for_the_next_one(
    framed: FramedTier, tier: BackedOff, trickle: Trickle, blocks: Blocks
) -> None:
    trickle.pause_seconds = 0.3
    with pytest.raises(TierTimeout):
        tier.tier.find([blocks.key(0)], 0.1)
    trickle.pause_seconds = 0.0
    assert tier.tier.find([blocks.key(99)], 5.0) == bytes([Found.ABSENT])
    assert tier.tier.find([blocks.key(1)], 5.0) == bytes([Found.HELD])


def test_a_write_that_is_too_slow_leaves_nothing_half_written(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    server.pause()
    big = memoryview(bytearray(64 << 20))
    with pytest.raises(TierTimeout):
        framed.put([blocks.key(50)], [big], 0.3)
    server.resume()
    direct = ValkeyTier(server.host, server.port)
    # The server reads the rest of the pipe, finds its end, and forgets the command.
    assert direct.find([blocks.key(50)], 5.0)[0] in (Found.ABSENT, Found.GHOST)
    direct.close()
