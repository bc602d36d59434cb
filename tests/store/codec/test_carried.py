"""Blocks through a tier with a codec: what comes back, what is refused, and which bytes are counted."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kvferry.cache.commands import Completion, Load, LoadDone, Store, StoreDone
from kvferry.clock import MonotonicClock
from kvferry.executors.threads import ThreadExecutor
from kvferry.store.codec import BlockLayout, Codec, open_codec
from kvferry.store.files import FilesTier
from kvferry.store.frame import HEADER_BYTES, Flaw, encode_into, parse
from kvferry.store.frame import Codec as CodecId
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Got, Put

from .conftest import Numbers

NAMESPACE = b"n" * 32
LAYOUT = BlockLayout(2, 2, 8, 16, "float32")
KEYS = [bytes([number]) * 32 for number in range(4)]
LOSSY = ["fp8", "int8", "int4"]


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[FilesTier]:
    tier = FilesTier(tmp_path, ghost_keys=1000)
    yield tier
    tier.close()


@pytest.fixture
def blocks(numbers: Numbers) -> list[memoryview]:
    return [numbers.block(LAYOUT, numbers.kv(LAYOUT, seed)) for seed in range(4)]


def blanks() -> list[memoryview]:
    return [memoryview(bytearray(LAYOUT.block_bytes)) for _ in KEYS]


def decoded(codec: Codec, block: memoryview) -> memoryview:
    """What a block is after the codec, without any tier."""
    (slot,) = codec.slots_for([block])
    codec.encode_into(block, slot)
    back = memoryview(bytearray(LAYOUT.block_bytes))
    codec.decode_into(slot, back)
    return back


def stored(tier: FilesTier, key: bytes, payload_bytes: int) -> bytes:
    value = memoryview(bytearray(HEADER_BYTES + payload_bytes))
    assert tier.get([key], [[value]], 5.0) == bytes([Got.OK])
    return bytes(value)


@pytest.mark.parametrize("name", LOSSY)
def test_blocks_come_back_decoded(tier: FilesTier, blocks: list[memoryview], name: str) -> None:
    framed, into = FramedTier(tier, NAMESPACE, codec=open_codec(name, LAYOUT)), blanks()
    assert framed.put(KEYS, blocks, 5.0) == bytes([Put.STORED]) * 4
    assert framed.get(KEYS, into, 5.0) == bytes([Got.OK]) * 4
    codec = open_codec(name, LAYOUT)
    assert into == [decoded(codec, block) for block in blocks]


@pytest.mark.parametrize("name", LOSSY)
def test_a_frame_holds_the_encoded_block(tier: FilesTier, blocks: list[memoryview], name: str) -> None:
    codec = open_codec(name, LAYOUT)
    FramedTier(tier, NAMESPACE, codec=codec).put(KEYS, blocks, 5.0)
    header = parse(stored(tier, KEYS[0], codec.payload_bytes))
    assert (header.codec, header.payload_bytes) == (CodecId[name.upper()], codec.payload_bytes)


def test_the_codec_raw_is_no_codec(tier: FilesTier, blocks: list[memoryview]) -> None:
    FramedTier(tier, NAMESPACE, codec=open_codec("raw", LAYOUT)).put(KEYS, blocks, 5.0)
    assert stored(tier, KEYS[1], LAYOUT.block_bytes)[HEADER_BYTES:] == blocks[1]


@pytest.mark.parametrize("codec", [None, *LOSSY])
def test_a_frame_of_another_codec_is_alien(tier: FilesTier, codec: str | None) -> None:
    """Even of the right length, and with a checksum that is right."""
    flaws: list[Flaw] = []
    reader = FramedTier(
        tier,
        NAMESPACE,
        codec=None if codec is None else open_codec(codec, LAYOUT),
        on_flaw=lambda _, flaw: flaws.append(flaw),
    )
    payload = memoryview(bytes(reader.payload_bytes(blanks()[0])))
    header = memoryview(bytearray(HEADER_BYTES))
    other = CodecId.INT4 if codec == "int8" else CodecId.INT8
    encode_into(header, NAMESPACE, KEYS[0], payload, other)
    tier.put(KEYS[:1], [[header, payload]], 5.0)
    into = blanks()[:1]
    assert reader.get(KEYS[:1], into, 5.0) == bytes([Got.ALIEN])
    assert flaws == [Flaw.CODEC]
    assert into == blanks()[:1]


@pytest.mark.parametrize("writer", ["raw", *LOSSY])
@pytest.mark.parametrize("reader", ["raw", *LOSSY])
def test_no_reader_accepts_blocks_of_another_codec(
    tier: FilesTier, blocks: list[memoryview], writer: str, reader: str
) -> None:
    FramedTier(tier, NAMESPACE, codec=open_codec(writer, LAYOUT)).put(KEYS, blocks, 5.0)
    got = FramedTier(tier, NAMESPACE, codec=open_codec(reader, LAYOUT)).get(KEYS, blanks(), 5.0)
    assert (got == bytes([Got.OK]) * 4) is (writer == reader)


@pytest.mark.parametrize("name", LOSSY)
def test_a_damaged_payload_is_never_decoded(tier: FilesTier, blocks: list[memoryview], name: str) -> None:
    codec = open_codec(name, LAYOUT)
    framed = FramedTier(tier, NAMESPACE, codec=codec)
    framed.put(KEYS[:1], blocks[:1], 5.0)
    value = bytearray(stored(tier, KEYS[0], codec.payload_bytes))
    value[-1] ^= 1
    tier.drop(KEYS[:1], 5.0)
    tier.put(KEYS[:1], [[memoryview(value)]], 5.0)
    into = blanks()[:1]
    assert framed.get(KEYS[:1], into, 5.0) == bytes([Got.CORRUPT])
    assert into == blanks()[:1]


def test_nothing_behind_a_block_that_cannot_be_held_is_written(
    tier: FilesTier, numbers: Numbers, blocks: list[memoryview]
) -> None:
    bad = numbers.kv(LAYOUT)
    bad[0, 0, 0, 0, 0] = np.nan
    blocks[2] = numbers.block(LAYOUT, bad)
    framed = FramedTier(tier, NAMESPACE, codec=open_codec("int8", LAYOUT))
    put = framed.put(KEYS, blocks, 5.0)
    assert put == bytes([Put.STORED, Put.STORED, Put.FAILED, Put.FAILED])
    assert framed.get(KEYS, blanks(), 5.0) == bytes([Got.OK, Got.OK, Got.ABSENT, Got.ABSENT])


def test_a_buffer_that_is_no_block_is_refused_before_anything_is_read(tier: FilesTier) -> None:
    framed = FramedTier(tier, NAMESPACE, codec=open_codec("int8", LAYOUT))
    with pytest.raises(ValueError, match="a block has 4096 bytes"):
        framed.get(KEYS[:1], [memoryview(bytearray(100))], 5.0)


# -- the executor --------------------------------------------------------------------------------------


class Memory:
    """An engine's blocks."""

    def __init__(self, blocks: Sequence[memoryview]) -> None:
        self.blocks = blocks

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        return self.blocks[start:stop]


class Carrier:
    """An executor, asked for one thing after the other."""

    def __init__(self, tier: FilesTier, codec: Codec) -> None:
        self._answers: queue.Queue[Completion] = queue.Queue()
        self.executor = ThreadExecutor(
            [tier], self._answers.put, clock=MonotonicClock(), holder=b"me", codec=codec
        )

    def store(self, blocks: Sequence[memoryview]) -> StoreDone:
        self.executor.submit([Store(1, "r", KEYS, 0, 4, Memory(blocks), 5.0, 5.0, NAMESPACE)])
        done = self._answers.get(timeout=10.0)
        assert isinstance(done, StoreDone)
        return done

    def load(self, blocks: Sequence[memoryview]) -> LoadDone:
        self.executor.submit([Load(2, "r", 0, KEYS, 0, 4, Memory(blocks), 5.0, NAMESPACE)])
        done = self._answers.get(timeout=10.0)
        assert isinstance(done, LoadDone)
        return done


@pytest.fixture
def carrier(tier: FilesTier) -> Iterator[Carrier]:
    carrier = Carrier(tier, open_codec("int4", LAYOUT))
    yield carrier
    carrier.executor.close()


def test_an_executor_carries_encoded_blocks(carrier: Carrier, blocks: list[memoryview]) -> None:
    carrier.store(blocks)
    into = blanks()
    assert carrier.load(into).good == 4
    codec = open_codec("int4", LAYOUT)
    assert into == [decoded(codec, block) for block in blocks]


def test_a_store_counts_the_bytes_that_moved(carrier: Carrier, blocks: list[memoryview]) -> None:
    done = carrier.store(blocks)
    moved = 4 * open_codec("int4", LAYOUT).payload_bytes
    assert (done.stored_bytes, done.legs.bytes) == (moved, moved)


def test_a_load_counts_the_bytes_that_moved(carrier: Carrier, blocks: list[memoryview]) -> None:
    carrier.store(blocks)
    assert carrier.load(blanks()).legs.bytes == 4 * open_codec("int4", LAYOUT).payload_bytes
