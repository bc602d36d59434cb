"""A read whose answers are not what was asked for: one bad block is one bad block."""

from __future__ import annotations

import hashlib

import pytest

from kvferry.clock import MonotonicClock
from kvferry.store.backoff import BackedOff, State
from kvferry.store.tier import Found, Got, Put
from kvferry.store.valkey import EmbeddedServer, ValkeyTier
from kvferry.store.valkey.connection import Connection, command

KEYS = [hashlib.sha256(b"%d" % n).digest() for n in range(3)]


def test_a_name_of_another_type_is_a_bad_block_and_no_bad_server(server: EmbeddedServer) -> None:
    clock = MonotonicClock()
    inner = ValkeyTier(server.host, server.port, ghost_keys=1000)
    tier = BackedOff(inner, clock)
    connection = Connection(server.host, server.port, clock, clock.now() + 10.0)
    connection.send([command(b"LPUSH", b"kvferry:b:" + KEYS[1], b"x")])
    connection.read_replies(1)
    assert tier.put(KEYS, [[memoryview(b"abc")]] * 3, 5.0) == bytes([Put.STORED, Put.HELD, Put.STORED])
    into = [bytearray(3) for _ in KEYS]
    got = tier.get(KEYS, [[memoryview(part)] for part in into], 5.0)
    assert got == bytes([Got.OK, Got.CORRUPT, Got.OK])
    assert tier.state is State.UP
    # Whoever drops the bad block is rid of it.
    assert tier.drop([KEYS[1]], 5.0, ghost=False) == 1
    assert tier.find([KEYS[1]], 5.0) == bytes([Found.ABSENT])


def test_keys_without_buffers_are_refused_before_they_are_asked_for(server: EmbeddedServer) -> None:
    tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
    with pytest.raises(ValueError, match="2 keys for 1 buffers"):
        tier.get(KEYS[:2], [[memoryview(bytearray(1))]], 5.0)
    assert tier.put(KEYS, [[memoryview(b"abc")]] * 3, 5.0) == bytes([Put.STORED]) * 3
