"""Room that shrinks while it is in use: a server's memory, a directory's capacity."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvferry.store.files import FilesTier
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Put
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

from ..store.conftest import Blocks

NAMESPACE = b"n" * 32
COUNT = 60


def say(server: EmbeddedServer, *words: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=5.0) as connection:
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))
        assert connection.recv(64) == b"+OK\r\n"


def publish(framed: FramedTier, blocks: Blocks, numbers: range) -> bytes:
    return framed.put([blocks.key(n) for n in numbers], [blocks.payload(n) for n in numbers], 10.0)


def read(framed: FramedTier, blocks: Blocks, numbers: range) -> bytes:
    into = [blocks.blank() for _ in numbers]
    statuses = framed.get([blocks.key(n) for n in numbers], into, 10.0)
    for n, status, buffer in zip(numbers, statuses, into, strict=True):
        assert status != Got.OK or buffer == blocks.payload(n)
    return statuses


@pytest.fixture
def framed(server: EmbeddedServer, blocks: Blocks) -> FramedTier:
    framed = FramedTier(ValkeyTier(server.host, server.port, ghost_keys=1000), NAMESPACE)
    assert set(publish(framed, blocks, range(COUNT))) == {Put.STORED}
    return framed


def test_a_server_with_less_memory_evicts_and_serves_on(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    say(server, b"CONFIG", b"SET", b"maxmemory", b"5mb")
    assert set(publish(framed, blocks, range(COUNT, COUNT + 5))) == {Put.STORED}
    statuses = read(framed, blocks, range(COUNT + 5))
    assert set(statuses) == {Got.OK, Got.ABSENT}
    found = framed.find([blocks.key(n) for n in range(COUNT + 5)], 5.0)
    assert set(found) == {Found.HELD, Found.GHOST}


def test_a_server_that_is_out_of_memory_still_gives_what_it_has(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    say(server, b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
    say(server, b"CONFIG", b"SET", b"maxmemory", b"3mb")
    assert set(publish(framed, blocks, range(COUNT, COUNT + 5))) == {Put.FULL}
    assert set(read(framed, blocks, range(COUNT))) == {Got.OK}


def test_a_server_that_gets_its_memory_back_takes_blocks_again(
    framed: FramedTier, server: EmbeddedServer, blocks: Blocks
) -> None:
    say(server, b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
    say(server, b"CONFIG", b"SET", b"maxmemory", b"3mb")
    assert publish(framed, blocks, range(COUNT, COUNT + 1)) == bytes([Put.FULL])
    say(server, b"CONFIG", b"SET", b"maxmemory", b"64mb")
    assert publish(framed, blocks, range(COUNT, COUNT + 1)) == bytes([Put.STORED])


def test_a_directory_with_less_capacity_shrinks_to_it(tmp_path: Path, blocks: Blocks) -> None:
    size = FramedTier.value_bytes(len(blocks.payload(0)))
    wide = FilesTier(tmp_path, capacity_bytes=COUNT * size, ghost_keys=1000)
    assert set(publish(FramedTier(wide, NAMESPACE), blocks, range(COUNT))) == {Put.STORED}
    wide.close()
    narrow = FilesTier(tmp_path, capacity_bytes=10 * size, ghost_keys=1000)
    framed = FramedTier(narrow, NAMESPACE)
    assert set(publish(framed, blocks, range(COUNT, COUNT + 2))) == {Put.STORED}
    used = narrow.usage(5.0).used_bytes
    assert used is not None
    assert used <= 10 * size
    assert read(framed, blocks, range(COUNT + 2)).count(Got.OK) == 10
