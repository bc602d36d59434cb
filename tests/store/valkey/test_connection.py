"""Replies cut anywhere by the network are read as they were sent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.clock import MonotonicClock
from kvferry.errors import TierTimeout, TierUnavailable
from kvferry.store.valkey.connection import ABSENT, FILLED, WRONG_LENGTH, Connection, ServerError, command


class Scripted:
    """A server that sends given pieces with a pause between them, to one client."""

    def __init__(self, pieces: list[bytes], pause_seconds: float = 0.002) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pieces, self._pause = pieces, pause_seconds
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def connect(self, seconds: float = 5.0) -> Connection:
        clock = MonotonicClock()
        port = self._listener.getsockname()[1]
        connection = Connection("127.0.0.1", port, clock, clock.now() + seconds)
        connection.begin(clock.now() + seconds)
        return connection

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._listener, client:
            for piece in self._pieces:
                client.sendall(piece)
                time.sleep(self._pause)
            with contextlib.suppress(ConnectionResetError):
                client.recv(1)


def cut(text: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(text) for place in places} - {0}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_values_arrive_whatever_the_cuts(places: list[int]) -> None:
    text = b"$10\r\n0123456789\r\n$-1\r\n$3\r\nabc\r\n-ERR no\r\n$4\r\nlast\r\n"
    server = Scripted(cut(text, places))
    connection = server.connect()
    parts = [memoryview(bytearray(4)), memoryview(bytearray(6))]
    assert connection.read_into(parts, 10) == FILLED
    assert b"".join(parts) == b"0123456789"
    assert connection.read_into(parts, 10) == ABSENT
    assert connection.read_into(parts, 10) == WRONG_LENGTH
    with pytest.raises(ServerError, match="ERR no"):
        connection.read_into(parts, 10)
    assert connection.read_into(parts[:1], 4) == FILLED
    assert bytes(parts[0]) == b"last"
    connection.close()
    server.thread.join()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_replies_arrive_whatever_the_cuts(places: list[int]) -> None:
    text = b":7\r\n+OK\r\n*3\r\n$1\r\na\r\n$-1\r\n*1\r\n:-2\r\n$4\r\n\r\n\r\n\r\n*-1\r\n"
    server = Scripted(cut(text, places))
    connection = server.connect()
    assert connection.read_replies(5) == [7, b"OK", [b"a", None, [-2]], b"\r\n\r\n", None]
    connection.close()
    server.thread.join()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_arrays_of_integers_end_where_they_end(places: list[int]) -> None:
    text = b"*4\r\n:1\r\n:0\r\n:-5\r\n:12\r\n:9\r\n*0\r\n*2\r\n:1\r\n+x\r\n*1\r\n:3\r\n"
    server = Scripted(cut(text, places))
    connection = server.connect()
    assert connection.read_replies(5) == [[1, 0, -5, 12], 9, [], [1, b"x"], [3]]
    connection.close()
    server.thread.join()


def test_a_reply_that_stops_half_way_ends_at_the_deadline() -> None:
    connection = Scripted([b"$10\r\n01234"]).connect(0.2)
    start = time.monotonic()
    with pytest.raises(TierTimeout):
        connection.read_into([memoryview(bytearray(10))], 10)
    assert time.monotonic() - start < 1.0


def test_a_line_that_stops_half_way_ends_at_the_deadline() -> None:
    connection = Scripted([b"$1"]).connect(0.2)
    with pytest.raises(TierTimeout):
        connection.read_into([memoryview(bytearray(10))], 10)


class Narrow:
    """A socket whose window holds `window` bytes: more arrives only when some have been taken."""

    def __init__(self, text: bytes, window: int) -> None:
        self._text, self._window = text, window

    def setsockopt(self, *option: object) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, size: int, flags: int) -> bytes:
        if not flags & socket.MSG_PEEK or (flags & socket.MSG_WAITALL and size > self._window):
            raise BlockingIOError("the deadline passed")
        return self._text[: min(size, self._window)]

    def recvmsg_into(self, parts: list[bytearray], ancillary: int, flags: int) -> tuple[int]:
        taken = 0
        for part in parts:
            part[:] = self._text[taken : taken + len(part)]
            taken += len(part)
        self._text = self._text[taken:]
        return (taken,)


@pytest.mark.parametrize("window", range(1, 8))
def test_a_line_cut_by_a_full_window_is_taken_and_not_waited_for(window: int) -> None:
    connection = Scripted([]).connect()
    connection._socket = Narrow(b"$3\r\nabc\r\n$-1\r\n$2\r\nno\r\n", window)  # type: ignore[assignment]
    into = memoryview(bytearray(3))
    read = [connection.read_into([into], 3) for _ in range(3)]
    assert (read, bytes(into)) == ([FILLED, ABSENT, WRONG_LENGTH], b"abc")


def test_a_closed_connection_stays_closed() -> None:
    connection = Scripted([b"$10\r\n01234"]).connect(0.1)
    with pytest.raises(TierTimeout):
        connection.read_into([memoryview(bytearray(10))], 10)
    with pytest.raises(TierUnavailable, match="closed"):
        connection.send([b"x"])


def test_an_answer_to_nothing_is_refused() -> None:
    connection = Scripted([b":1\r\n:2\r\n"]).connect()
    with pytest.raises(TierUnavailable, match="more replies"):
        connection.read_replies(1)


def test_command_counts_bytes() -> None:
    assert command(b"GET", b"k\r\n") == b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n"
