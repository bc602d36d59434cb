"""Payloads are contracts with blocks that lie in pools: read by their description, number by number."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvferry.store.codec import BlockLayout, Codec, open_codec
from kvferry.store.codec.floats import e4m3_numbers

from .conftest import Numbers

LAYOUT = BlockLayout(2, 2, 64, 64, "float32")
LAYERS, HEADS, TOKENS, WIDTH = 2, 2, 64, 64


def fixed_block(numbers: Numbers) -> memoryview:
    """The same on every machine: multiples of 1/64."""
    at = np.arange(LAYOUT.numbers, dtype=np.int64)
    kv = ((at * at * 31 + at * 7919) % 4001 - 1900).astype(np.float32) / np.float32(64)
    return numbers.block(LAYOUT, kv.reshape(LAYOUT.shape))


def encoded(codec: Codec, block: memoryview) -> bytes:
    out = memoryview(bytearray(codec.payload_bytes))
    codec.encode_into(block, out)
    return bytes(out)


class Reader:
    """Takes sections off the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        self.left = payload

    def take(self, kind: str, count: int) -> tuple[float, ...]:
        size = struct.calcsize(f"<{count}{kind}")
        head, self.left = self.left[:size], self.left[size:]
        return struct.unpack(f"<{count}{kind}", head)


def places() -> Iterator[tuple[int, int, int, int, int]]:
    return itertools.product(range(LAYERS), range(2), range(HEADS), range(TOKENS), range(WIDTH))


def read_fp8(payload: bytes) -> list[float]:
    reader = Reader(payload)
    scales = reader.take("f", LAYERS * 2 * HEADS)
    codes = reader.take("B", LAYOUT.numbers)
    table = e4m3_numbers().astype(float)
    return [
        scales[(layer * 2 + kv) * HEADS + head] * table[int(code)]
        for (layer, kv, head, _, _), code in zip(places(), codes, strict=True)
    ]


def read_int8(payload: bytes) -> list[float]:
    reader = Reader(payload)
    key_scales = reader.take("e", LAYERS * HEADS * 2 * WIDTH)
    value_scales = reader.take("e", LAYERS * HEADS * TOKENS)
    codes = reader.take("b", LAYOUT.numbers)
    found = []
    for (layer, kv, head, token, at), code in zip(places(), codes, strict=True):
        row = layer * HEADS + head
        key = key_scales[(row * 2 + token // 32) * WIDTH + at]
        found.append(code * (value_scales[row * TOKENS + token] if kv else key))
    return found


def read_int4(payload: bytes) -> list[float]:
    reader = Reader(payload)
    groups = LAYERS * HEADS * 2 * WIDTH
    key_scales, key_zeros = reader.take("e", groups), reader.take("e", groups)
    value_scales, value_zeros = reader.take("e", groups), reader.take("e", groups)
    codes = reader.take("B", LAYOUT.numbers // 2)
    found = []
    for layer, kv, head, token, at in places():
        row = layer * HEADS + head
        code = int(codes[(row * TOKENS + token) * WIDTH + at])
        if kv:
            group = (row * TOKENS + token) * 2 + at // 32
            found.append(value_zeros[group] + (code >> 4) * value_scales[group])
        else:
            group = (row * 2 + token // 32) * WIDTH + at
            found.append(key_zeros[group] + (code & 15) * key_scales[group])
    return found


@pytest.mark.parametrize(
    ("name", "read"),
    [("fp8", read_fp8), ("int8", read_int8), ("int4", read_int4)],
    ids=lambda value: str(value),
)
def test_a_payload_reads_as_it_is_described(
    numbers: Numbers, name: str, read: Callable[[bytes], list[float]]
) -> None:
    codec, back = open_codec(name, LAYOUT), memoryview(bytearray(LAYOUT.block_bytes))
    payload = encoded(codec, fixed_block(numbers))
    codec.decode_into(memoryview(payload), back)
    ours = numbers.read(LAYOUT, back).reshape(-1)
    # The codec computes in float32, the description in float64.
    assert np.allclose(ours, read(payload), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("fp8", "d991f52bfe49cb05ee310b03bffa0364"),
        ("int8", "9b782c40f597a4367cc819006106f200"),
        ("int4", "79076ded5f7a73d371ccaf1f1df81bf0"),
    ],
)
def test_what_is_written_does_not_change(numbers: Numbers, name: str, digest: str) -> None:
    """Another format needs another codec: name, number and namespace."""
    payload = encoded(open_codec(name, LAYOUT), fixed_block(numbers))
    assert hashlib.sha256(payload).hexdigest()[:32] == digest
