"""What a put says of each block is what the server has, whatever happens in the middle of it."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kvferry.clock import MonotonicClock
from kvferry.errors import StoreError, TierTimeout, TierUnavailable
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Put, Vector
from kvferry.store.valkey import EmbeddedServer, ValkeyTier
from kvferry.store.valkey.connection import Connection, Reply, command

BLOCK = 720 << 10
BATCH = 60
"""Of such blocks, three windows."""
POOL = bytes(range(256)) * (BLOCK // 256 + 1)


def keys_of(count: int, batch: str = "") -> list[bytes]:
    return [hashlib.sha256(b"%b %d" % (batch.encode(), n)).digest() for n in range(count)]


def value(number: int, size: int = BLOCK) -> memoryview:
    return memoryview(POOL)[number % 256 : number % 256 + size]


def batch_of(count: int) -> list[Vector]:
    return [[value(n)] for n in range(count)]


def ask(server: EmbeddedServer, *arguments: bytes) -> Reply:
    """The server's own answer, past the tier."""
    clock = MonotonicClock()
    connection = Connection(server.host, server.port, clock, clock.now() + 30.0)
    connection.send([command(*arguments)])
    (reply,) = connection.read_replies(1)
    connection.close()
    return reply


def stored(server: EmbeddedServer, key: bytes) -> object:
    return ask(server, b"GET", b"kvferry:b:" + key)


def answers_right(tier: ValkeyTier) -> bool:
    """Whether the tier's connections are in order: answers belong to their questions."""
    keys = keys_of(3, "afterwards")
    into = [bytearray(n) for n in (1, 3, 5000)]
    put = tier.put(keys, [[value(n, len(part))] for n, part in enumerate(into)], 10.0)
    got = tier.get(keys, [[memoryview(part)] for part in into], 10.0)
    dropped = tier.drop(keys, 10.0)
    whole = all(part == value(n, len(part)) for n, part in enumerate(into))
    return (put, got, dropped, whole) == (bytes([Put.STORED]) * 3, bytes([Got.OK]) * 3, 3, True)


@pytest.fixture
def tier(server: EmbeddedServer) -> Iterator[ValkeyTier]:
    tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
    yield tier
    tier.close()


def cut(data: memoryview, parts: int) -> Vector:
    step = len(data) // parts + 1
    return [data[at * step : (at + 1) * step] for at in range(parts)]


@pytest.mark.parametrize("parts", [1, 600])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([BLOCK], id="one"),
        pytest.param([100, BLOCK], id="two"),
        pytest.param([0, 0, 0], id="empty"),
        pytest.param([1] * 40, id="bytes"),
        pytest.param([BLOCK, 0, 1, 2, 300_000, 0, 65_536, 5], id="mixed"),
    ],
)
def test_any_batch_arrives_as_it_was_given(tier: ValkeyTier, sizes: list[int], parts: int) -> None:
    keys = keys_of(len(sizes))
    values = [cut(value(n, size), parts) for n, size in enumerate(sizes)]
    assert set(tier.put(keys, values, 20.0)) == {Put.STORED}
    into = [bytearray(size) for size in sizes]
    assert set(tier.get(keys, [cut(memoryview(part), parts) for part in into], 20.0)) == {Got.OK}
    assert all(part == value(n, len(part)) for n, part in enumerate(into))


def test_a_value_larger_than_a_window(tier: ValkeyTier, server: EmbeddedServer) -> None:
    large = os.urandom(1 << 16) * (20 << 4)
    keys = keys_of(3)
    values = [[value(0)], [memoryview(large)], [value(2)]]
    assert set(tier.put(keys, values, 20.0)) == {Put.STORED}
    assert stored(server, keys[1]) == large
    assert stored(server, keys[2]) == value(2)


def test_twenty_thousand_small_values(tier: ValkeyTier) -> None:
    keys = keys_of(20_000)
    part = [value(0, 1)]
    assert tier.put(keys, [part] * len(keys), 30.0) == bytes([Put.STORED]) * len(keys)
    assert tier.find(keys, 30.0) == bytes([Found.HELD]) * len(keys)
    assert tier.put(keys, [part] * len(keys), 30.0) == bytes([Put.HELD]) * len(keys)


def test_held_blocks_in_every_window_are_told_apart(tier: ValkeyTier) -> None:
    keys = keys_of(BATCH)
    tier.put(keys[::7], batch_of(BATCH)[::7], 10.0)
    expected = bytes(Put.HELD if n % 7 == 0 else Put.STORED for n in range(BATCH))
    assert tier.put(keys, batch_of(BATCH), 20.0) == expected


@pytest.mark.parametrize("room_mib", [3, 14, 30, 45], ids=["first", "second", "third", "last"])
def test_a_server_that_fills_in_any_window(room_mib: int) -> None:
    with EmbeddedServer(max_memory_bytes=room_mib << 20, policy="noeviction") as server:
        tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
        keys = keys_of(80)
        statuses = tier.put(keys, batch_of(80), 20.0)
        assert set(statuses) == {Put.STORED, Put.FULL}
        held = tier.find(keys, 10.0)
        assert [f == Found.HELD for f in held] == [s == Put.STORED for s in statuses]


def test_a_server_that_evicts_takes_more_than_it_holds() -> None:
    with EmbeddedServer(max_memory_bytes=8 << 20) as server:
        tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
        keys = keys_of(80)
        assert set(tier.put(keys, batch_of(80), 20.0)) == {Put.STORED}
        assert set(tier.find(keys, 10.0)) == {Found.HELD, Found.GHOST}
        assert answers_right(tier)


def test_a_name_of_another_type_is_in_nobodys_way(tier: ValkeyTier, server: EmbeddedServer) -> None:
    keys = keys_of(BATCH)
    taken = (0, 5, 30, BATCH - 1)
    for n in taken:
        ask(server, b"LPUSH", b"kvferry:b:" + keys[n], b"x")
    statuses = tier.put(keys, batch_of(BATCH), 20.0)
    assert [n for n in range(BATCH) if statuses[n] != Put.STORED] == list(taken)
    into = [bytearray(BLOCK) for _ in keys]
    got = tier.get(keys, [[memoryview(part)] for part in into], 20.0)
    assert [n for n in range(BATCH) if got[n] != Got.OK] == list(taken)
    assert all(part == value(n) for n, part in enumerate(into) if n not in taken)
    assert answers_right(tier)


def test_a_send_buffer_of_a_page_sends_all(
    monkeypatch: pytest.MonkeyPatch, tier: ValkeyTier, server: EmbeddedServer
) -> None:
    connect = socket.create_connection

    def narrow(*arguments: Any, **options: Any) -> socket.socket:
        made = connect(*arguments, **options)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made

    monkeypatch.setattr("kvferry.store.valkey.connection.socket.create_connection", narrow)
    keys = keys_of(3)
    values = [cut(value(n, 200_000), 100) for n in range(3)]
    assert set(tier.put(keys, values, 30.0)) == {Put.STORED}
    assert [stored(server, key) for key in keys] == [value(n, 200_000) for n in range(3)]


class Gate:
    """Passes a client's bytes on to the server up to a limit; then no more, or calls `then` and hangs up."""

    def __init__(self, server: EmbeddedServer, limit: int, then: Callable[[], None] | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server, self._left, self._then = server, limit, then
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        for sock in (*self._sockets, self._listener):
            sock.close()

    def _run(self) -> None:
        try:
            client, _ = self._listener.accept()
            server = socket.create_connection((self._server.host, self._server.port))
            self._sockets += [client, server]
            threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
            while self._left and (data := client.recv(min(65536, self._left))):
                server.sendall(data)
                self._left -= len(data)
        except OSError:
            return
        if self._then is not None:
            self._then()
            self.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        return


def truly(server: EmbeddedServer, keys: Sequence[bytes], statuses: bytes) -> bool:
    """Whether every block that is said to be there is there, whole."""
    return all(
        stored(server, key) == value(n)
        for n, (key, status) in enumerate(zip(keys, statuses, strict=True))
        if status in (Put.STORED, Put.HELD)
    )


def test_a_deadline_in_the_second_window_keeps_what_was_answered(server: EmbeddedServer) -> None:
    gate = Gate(server, limit=45 * BLOCK)
    tier = ValkeyTier(server.host, gate.port, ghost_keys=1000)
    keys = keys_of(BATCH)
    try:
        statuses = tier.put(keys, batch_of(BATCH), 2.0)
    finally:
        gate.close()
    # The first window was answered before the third began, which never ended.
    assert statuses.rstrip(bytes([Put.FAILED])) == bytes([Put.STORED]) * statuses.count(Put.STORED)
    assert 0 < statuses.count(Put.STORED) < 45
    assert truly(server, keys, statuses)


def test_a_deadline_before_the_first_answer_is_told(server: EmbeddedServer) -> None:
    gate = Gate(server, limit=5 * BLOCK)
    tier = ValkeyTier(server.host, gate.port, ghost_keys=1000)
    try:
        with pytest.raises(TierTimeout):
            tier.put(keys_of(BATCH), batch_of(BATCH), 0.5)
    finally:
        gate.close()


def test_a_server_killed_in_a_window(server: EmbeddedServer) -> None:
    gate = Gate(server, limit=45 * BLOCK, then=server.kill)
    tier = ValkeyTier(server.host, gate.port, ghost_keys=1000)
    try:
        statuses = tier.put(keys_of(BATCH), batch_of(BATCH), 2.0)
        assert set(statuses) == {Put.STORED, Put.FAILED}
    finally:
        gate.close()


def test_a_server_that_hangs_and_goes_on_is_asked_over_a_fresh_connection(
    tier: ValkeyTier, server: EmbeddedServer
) -> None:
    assert answers_right(tier)
    server.pause()
    with pytest.raises(TierTimeout):
        tier.put(keys_of(BATCH), batch_of(BATCH), 0.3)
    server.resume()
    assert answers_right(tier)


def test_a_server_that_returned_empty_takes_the_whole_batch(tier: ValkeyTier, server: EmbeddedServer) -> None:
    assert answers_right(tier)
    server.kill()
    server.start()
    keys = keys_of(BATCH)
    statuses = tier.put(keys, batch_of(BATCH), 10.0)
    assert set(statuses) == {Put.STORED}
    assert truly(server, keys, statuses)


def test_a_deadline_of_nothing_is_no_answer_and_no_harm(tier: ValkeyTier) -> None:
    assert answers_right(tier)
    with pytest.raises(TierTimeout):
        tier.put(keys_of(BATCH), batch_of(BATCH), 0.0)
    assert answers_right(tier)


def test_threads_over_one_tier(tier: ValkeyTier, server: EmbeddedServer) -> None:
    framed = FramedTier(tier, b"n" * 32)
    wrong: list[bytes] = []

    def publish(name: str) -> None:
        keys = keys_of(20, name)
        into = [memoryview(bytearray(BLOCK)) for _ in keys]
        statuses = framed.put(keys, [value(n) for n in range(20)], 20.0)
        statuses += framed.get(keys, into, 20.0)
        if any(statuses) or any(part != value(n) for n, part in enumerate(into)):
            wrong.append(statuses)

    threads = [threading.Thread(target=publish, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_over_connections_of_its_own(tier: ValkeyTier, server: EmbeddedServer) -> None:
    framed = FramedTier(tier, b"n" * 32)
    assert set(framed.put(keys_of(20, "parent"), [value(n) for n in range(20)], 20.0)) == {Put.STORED}
    keys = keys_of(20, "child")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            status = any(framed.put(keys, [value(n) for n in range(20)], 20.0))
        finally:
            os._exit(int(status))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tier.find(keys, 10.0) == bytes([Found.HELD]) * 20
    assert answers_right(tier)


def test_a_closed_tier_says_so(tier: ValkeyTier) -> None:
    assert answers_right(tier)
    tier.close()
    with pytest.raises(TierUnavailable, match="closed"):
        tier.put(keys_of(1), batch_of(1), 1.0)
    with pytest.raises(StoreError):
        tier.find(keys_of(1), 1.0)


def put_cut_off(tier: ValkeyTier, server: EmbeddedServer, keys: Sequence[bytes]) -> None:
    """A put that times out when some of its blocks have reached the server, which stores them later."""
    assert answers_right(tier)
    server.pause()
    try:
        with pytest.raises(TierTimeout):
            tier.put(keys, batch_of(len(keys)), 0.3)
    finally:
        server.resume()


def test_what_a_cut_off_put_left_there_is_known_once_it_is_gone(server: EmbeddedServer) -> None:
    tier, keys = ValkeyTier(server.host, server.port, ghost_keys=1000), keys_of(BATCH)
    put_cut_off(tier, server, keys)
    for _ in range(200):  # it reads what had reached it
        held = [key for key, found in zip(keys, tier.find(keys, 10.0), strict=True) if found == Found.HELD]
        if held:
            break
    assert held
    assert answers_right(tier)  # the next put, of other blocks
    tier.drop(held, 10.0, ghost=False)
    assert tier.find(held, 10.0) == bytes([Found.GHOST]) * len(held)


def test_what_is_owed_survives_a_connection_that_turns_out_dead(server: EmbeddedServer) -> None:
    tier, keys = ValkeyTier(server.host, server.port, ghost_keys=1000), keys_of(BATCH)
    put_cut_off(tier, server, keys)
    assert tier.find(keys[:1], 10.0)  # leaves a connection for the next call
    ask(server, b"CLIENT", b"KILL", b"TYPE", b"normal")
    assert answers_right(tier)
    assert tier.find(keys[-1:], 10.0) == bytes([Found.GHOST])
