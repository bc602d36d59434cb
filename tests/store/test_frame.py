"""The frame tells damage from foreignness, whatever byte is hit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import FormatError
from kvferry.store.frame import HEADER_BYTES, Codec, Flaw, encode_into, flaw_of, parse, verdict
from kvferry.store.tier import Got

NAMESPACE, KEY = b"n" * 32, b"k" * 32


def framed(payload: bytes = b"payload" * 100, codec: int = Codec.RAW) -> tuple[memoryview, memoryview]:
    header, body = memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(payload))
    encode_into(header, NAMESPACE, KEY, body, codec)
    return header, body


def test_a_frame_is_sound_for_its_own_key() -> None:
    header, payload = framed()
    assert flaw_of(header, payload, NAMESPACE, KEY) is None


def test_parse_reads_back_the_fields() -> None:
    header, payload = framed()
    parsed = parse(header)
    assert (parsed.version, parsed.codec, parsed.payload_bytes) == (1, Codec.RAW, len(payload))
    assert (parsed.namespace, parsed.key) == (NAMESPACE, KEY)


@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_header_bit_is_damage(bit: int) -> None:
    header, payload = framed()
    header[bit // 8] ^= 1 << bit % 8
    assert flaw_of(header, payload, NAMESPACE, KEY) is Flaw.HEADER
    assert verdict(header, payload, NAMESPACE, KEY) is Got.CORRUPT


@given(st.integers(0, 700 * 8 - 1))
def test_any_flipped_payload_bit_is_damage(bit: int) -> None:
    header, payload = framed()
    payload[bit // 8] ^= 1 << bit % 8
    assert flaw_of(header, payload, NAMESPACE, KEY) is Flaw.PAYLOAD


def test_a_cut_payload_is_damage() -> None:
    header, payload = framed()
    assert flaw_of(header, payload[:-1], NAMESPACE, KEY) is Flaw.LENGTH


def test_an_empty_header_is_damage() -> None:
    _, payload = framed()
    assert flaw_of(memoryview(bytearray(HEADER_BYTES)), payload, NAMESPACE, KEY) is Flaw.HEADER


@pytest.mark.parametrize(
    ("namespace", "key", "flaw"),
    [(b"x" * 32, KEY, Flaw.NAMESPACE), (NAMESPACE, b"x" * 32, Flaw.KEY)],
)
def test_a_sound_frame_of_somebody_else_is_alien(namespace: bytes, key: bytes, flaw: Flaw) -> None:
    header, payload = framed()
    assert flaw_of(header, payload, namespace, key) is flaw
    assert flaw.got is Got.ALIEN


def test_another_codec_is_alien() -> None:
    header, payload = framed(codec=Codec.INT8)
    assert flaw_of(header, payload, NAMESPACE, KEY) is Flaw.CODEC


def test_a_short_key_is_refused() -> None:
    with pytest.raises(FormatError, match="32 bytes"):
        encode_into(memoryview(bytearray(HEADER_BYTES)), NAMESPACE, b"short", memoryview(b""))


@pytest.mark.parametrize("text", [b"", b"x" * HEADER_BYTES])
def test_parse_refuses_what_is_no_frame(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse(text)
