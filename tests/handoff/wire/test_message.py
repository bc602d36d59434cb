from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from kvferry.handoff.wire.failed import Damaged
from kvferry.handoff.wire.message import HEADER_BYTES, Kind, digest_of, header_of, parse_header


def test_a_header_comes_back() -> None:
    data = header_of(Kind.CHUNK, 7, 1 << 40, bytes(range(16)))
    header = parse_header(data)
    assert len(data) == HEADER_BYTES
    assert (header.kind, header.index, header.payload_bytes, header.digest) == (
        Kind.CHUNK, 7, 1 << 40, bytes(range(16)),
    )  # fmt: skip


@given(st.integers(0, HEADER_BYTES - 1), st.integers(0, 7))
def test_no_changed_bit_passes(at: int, bit: int) -> None:
    data = bytearray(header_of(Kind.CHUNK, 7, 99, bytes(16)))
    data[at] ^= 1 << bit
    with pytest.raises(Damaged):
        parse_header(data)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_digest_does_not_see_where_parts_end(parts: list[bytes]) -> None:
    assert digest_of([memoryview(part) for part in parts]) == xxh3_128_digest(b"".join(parts))
