"""A server that dies, hangs, is slow to return, comes back empty or is full: all for real."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvferry.clock import MonotonicClock
from kvferry.errors import StoreError, TierTimeout, TierUnavailable
from kvferry.store.backoff import BackedOff, State
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Put
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

from ..conftest import Blocks

NAMESPACE = b"n" * 32


@pytest.fixture
def tier(server: EmbeddedServer) -> Iterator[ValkeyTier]:
    tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
    yield tier
    tier.close()


@pytest.fixture
def framed(tier: ValkeyTier, blocks: Blocks) -> FramedTier:
    framed = FramedTier(tier, NAMESPACE)
    keys = [blocks.key(n) for n in range(20)]
    assert set(framed.put(keys, [blocks.payload(n) for n in range(20)], 10.0)) == {Put.STORED}
    return framed


def read(framed: FramedTier, blocks: Blocks, count: int = 20, timeout: float = 5.0) -> bytes:
    return framed.get([blocks.key(n) for n in range(count)], [blocks.blank() for _ in range(count)], timeout)


def test_a_server_that_is_gone_refuses(framed: FramedTier, server: EmbeddedServer, blocks: Blocks) -> None:
    server.kill()
    with pytest.raises(TierUnavailable):
        framed.find([blocks.key(0)], 1.0)
    assert set(read(framed, blocks)) == {Got.FAILED}


def test_a_server_that_returns_empty_serves_at_once(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    port = server.port
    server.kill()
    server.start()
    assert server.port == port
    assert framed.find([blocks.key(0)], 1.0) == bytes([Found.ABSENT])
    assert framed.put([blocks.key(0)], [blocks.payload(0)], 1.0) == bytes([Put.STORED])
    assert read(framed, blocks, 2) == bytes([Got.OK, Got.ABSENT])


def test_a_hung_server_costs_the_deadline_and_no_more(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    server.pause()
    start = time.monotonic()
    assert set(read(framed, blocks, timeout=0.3)) == {Got.LATE}
    with pytest.raises(TierTimeout):
        framed.find([blocks.key(0)], 0.2)
    with pytest.raises(TierTimeout):
        framed.lease([blocks.key(0)], b"me", 1.0, 0.2)
    assert 0.65 < time.monotonic() - start < 2.0
    server.resume()
    # What the server still had to say was said to closed connections.
    assert set(read(framed, blocks)) == {Got.OK}


def test_a_server_killed_in_the_middle_of_a_read(server: EmbeddedServer, blocks: Blocks) -> None:
    relay = _SlowRelay(server.port, stop_after_bytes=500_000)
    tier = FramedTier(ValkeyTier(server.host, relay.port), NAMESPACE)
    direct = FramedTier(ValkeyTier(server.host, server.port), NAMESPACE)
    keys = [blocks.key(n) for n in range(20)]
    direct.put(keys, [blocks.payload(n) for n in range(20)], 10.0)
    into = [blocks.blank() for _ in keys]
    threading.Timer(0.2, server.kill).start()
    threading.Timer(0.3, relay.close).start()
    statuses = tier.get(keys, into, 5.0)
    good = len(statuses) - len(statuses.lstrip(bytes([Got.OK])))
    assert 0 < good < 20
    assert set(statuses[good:]) == {Got.FAILED}
    assert all(into[n] == blocks.payload(n) for n in range(good))


def test_a_deadline_in_the_middle_of_a_read_keeps_what_arrived(
    server: EmbeddedServer, blocks: Blocks
) -> None:
    relay = _SlowRelay(server.port, stop_after_bytes=500_000)
    tier = FramedTier(ValkeyTier(server.host, relay.port), NAMESPACE)
    direct = FramedTier(ValkeyTier(server.host, server.port), NAMESPACE)
    keys = [blocks.key(n) for n in range(20)]
    direct.put(keys, [blocks.payload(n) for n in range(20)], 10.0)
    statuses = tier.get(keys, [blocks.blank() for _ in keys], 0.5)
    good = len(statuses) - len(statuses.lstrip(bytes([Got.OK])))
    assert 0 < good < 20
    assert set(statuses[good:]) == {Got.LATE}
    relay.close()


def test_a_corrupted_byte_is_found(framed: FramedTier, server: EmbeddedServer, blocks: Blocks) -> None:
    with socket.create_connection((server.host, server.port)) as raw:
        name = b"kvferry:b:" + blocks.key(3)
        raw.sendall(b"*4\r\n$8\r\nSETRANGE\r\n$%d\r\n%b\r\n$4\r\n5000\r\n$1\r\n!\r\n" % (len(name), name))
        assert raw.recv(64).startswith(b":")
    statuses = read(framed, blocks, 5)
    assert statuses == bytes([Got.OK, Got.OK, Got.OK, Got.CORRUPT, Got.OK])


def test_a_block_cut_on_the_server_is_found(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    with socket.create_connection((server.host, server.port)) as raw:
        name = b"kvferry:b:" + blocks.key(1)
        raw.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$4\r\nshrt\r\n" % (len(name), name))
        assert raw.recv(64) == b"+OK\r\n"
    assert read(framed, blocks, 3) == bytes([Got.OK, Got.CORRUPT, Got.OK])


def test_a_full_server_that_may_not_evict_says_so(blocks: Blocks) -> None:
    with EmbeddedServer(max_memory_bytes=5 << 20, policy="noeviction") as server:
        framed = FramedTier(ValkeyTier(server.host, server.port, ghost_keys=1000), NAMESPACE)
        keys = [blocks.key(n) for n in range(100)]
        statuses = framed.put(keys, [blocks.payload(n) for n in range(100)], 10.0)
        assert statuses.endswith(bytes([Put.FULL]))
        found = framed.find(keys, 5.0)
        assert found.count(Found.HELD) == statuses.count(Put.STORED)


def test_a_full_server_evicts_blocks_and_keeps_notes(blocks: Blocks) -> None:
    with EmbeddedServer(max_memory_bytes=8 << 20) as server:
        framed = FramedTier(ValkeyTier(server.host, server.port, ghost_keys=1000), NAMESPACE)
        framed.write_note("note", b"x" * 1000, 1.0)
        for n in range(200):
            assert framed.put([blocks.key(n)], [blocks.payload(n)], 5.0) == bytes([Put.STORED])
        found = framed.find([blocks.key(n) for n in range(200)], 5.0)
        assert found.count(Found.HELD) < 100
        assert found.count(Found.HELD) + found.count(Found.GHOST) == 200
        assert framed.read_note("note", 1.0) == b"x" * 1000
        usage = framed.usage(1.0)
        assert usage.capacity_bytes == 8 << 20
        assert usage.evicted_blocks == found.count(Found.GHOST)


def test_published_keys_are_remembered_over_generations(server: EmbeddedServer, blocks: Blocks) -> None:
    tier = ValkeyTier(server.host, server.port, ghost_keys=50)
    for n in range(120):
        tier.put([blocks.key(n)], [[memoryview(b"x")]], 5.0)
    tier.drop([blocks.key(n) for n in range(120)], 5.0, ghost=False)
    found = tier.find([blocks.key(n) for n in range(70, 120)], 5.0)
    assert set(found) == {Found.GHOST}
    assert tier.find([blocks.key(n) for n in range(10)], 5.0).count(Found.GHOST) < 5


def test_two_publishers_of_one_block(server: EmbeddedServer, blocks: Blocks) -> None:
    tiers = [FramedTier(ValkeyTier(server.host, server.port), NAMESPACE) for _ in range(4)]
    keys = [blocks.key(n) for n in range(20)]
    answers: list[bytes] = []

    def publish(tier: FramedTier) -> None:
        answers.append(tier.put(keys, [blocks.payload(n) for n in range(20)], 10.0))

    threads = [threading.Thread(target=publish, args=(tier,)) for tier in tiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for column in zip(*answers, strict=True):
        assert sorted(column) == [Put.STORED, Put.HELD, Put.HELD, Put.HELD]
    assert set(read(tiers[0], blocks)) == {Got.OK}


def test_back_off_leaves_a_dead_server_alone_and_finds_it_again(
    server: EmbeddedServer, blocks: Blocks
) -> None:
    inner = ValkeyTier(server.host, server.port)
    tier = BackedOff(inner, MonotonicClock(), first_seconds=0.05, longest_seconds=0.1)
    server.kill()
    with pytest.raises(StoreError):
        tier.find([blocks.key(0)], 1.0)
    assert tier.state is State.RESTING
    server.start()
    for _ in range(100):
        try:
            tier.find([blocks.key(0)], 1.0)
            break
        except TierUnavailable:
            time.sleep(0.02)
    assert tier.state is State.UP


def test_a_wrong_password_is_told_without_the_password(server: EmbeddedServer, blocks: Blocks) -> None:
    tier = ValkeyTier(server.host, server.port, username="nobody", password="secret-word")
    with pytest.raises(TierUnavailable, match="check user, password") as caught:
        tier.find([blocks.key(0)], 1.0)
    assert "secret-word" not in str(caught.value)


def test_a_server_that_talks_something_else(blocks: Blocks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tier = ValkeyTier("127.0.0.1", listener.getsockname()[1])

        def talk() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=talk)
        thread.start()
        assert tier.get([blocks.key(0)], [[blocks.blank()]], 2.0) == bytes([Got.FAILED])
        thread.join()


class _SlowRelay:
    """Passes bytes between a client and the server, and stops passing the server's after a while."""

    def __init__(self, port: int, stop_after_bytes: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = port
        self._left = stop_after_bytes
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                sock.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            return
        self._sockets += [client, server]
        threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
        threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(65536):
                if counted:
                    data = data[: self._left]
                    self._left -= len(data)
                    if not data:
                        return
                target.sendall(data)
        except OSError:
            return
