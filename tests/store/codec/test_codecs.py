"""What every codec promises, and how far each may be from the block that went in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import FormatError
from kvferry.store.codec import CODECS, BlockLayout, Codec, open_codec
from kvferry.store.frame import Codec as CodecId

from .conftest import Numbers

LOSSY = [name for name in CODECS if name != "raw"]
DTYPES = ["float32", "float16", "bfloat16"]
SMALL = BlockLayout(2, 2, 8, 16, "float32")


def there_and_back(codec: Codec, block: memoryview) -> memoryview:
    (slot,) = codec.slots_for([block])
    codec.encode_into(block, slot)
    back = memoryview(bytearray(codec.layout.block_bytes))
    codec.decode_into(slot, back)
    return back


def encoded(codec: Codec, block: memoryview) -> bytes:
    out = memoryview(bytearray(codec.payload_bytes))
    codec.encode_into(block, out)
    return bytes(out)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_has_the_number_of_its_name(name: str) -> None:
    assert open_codec(name, SMALL).id is CodecId[name.upper()]


def test_every_number_has_a_codec() -> None:
    assert {kind.id for kind in CODECS.values()} == set(CodecId)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raw", 1_474_560),
        ("fp8", 30 * 2 * 3 * 4 + 368_640),
        ("int8", 30 * 3 * 64 * 2 + 30 * 3 * 32 * 2 + 368_640),
        ("int4", 30 * 3 * 64 * 4 + 30 * 3 * 32 * 2 * 4 + 184_320),
    ],
)
def test_the_bytes_of_an_encoded_block(name: str, expected: int) -> None:
    assert CODECS[name].encoded_bytes(BlockLayout(30, 3, 32, 64, "float32")) == expected


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (3, 1, 7, 5), (2, 2, 32, 64), (1, 3, 64, 80), (2, 1, 16, 33)]
)
def test_any_shape_comes_back(numbers: Numbers, name: str, sizes: tuple[int, int, int, int]) -> None:
    layout = BlockLayout(*sizes, "float32")
    kv = numbers.kv(layout)
    back = numbers.read(layout, there_and_back(open_codec(name, layout), numbers.block(layout, kv)))
    assert np.linalg.norm(back - kv) <= 0.12 * np.linalg.norm(kv)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_type_comes_back(numbers: Numbers, name: str, dtype: str) -> None:
    layout = BlockLayout(4, 2, 32, 64, dtype)
    block = numbers.block(layout, numbers.kv(layout))
    kv = numbers.read(layout, block)
    back = numbers.read(layout, there_and_back(open_codec(name, layout), block))
    assert np.linalg.norm(back - kv) <= 0.12 * np.linalg.norm(kv)


@pytest.mark.parametrize("name", CODECS)
def test_the_order_in_memory_changes_no_payload(numbers: Numbers, name: str) -> None:
    other = BlockLayout(2, 2, 8, 16, "float32", "layer.kv.token.head.width")
    kv = numbers.kv(SMALL)
    ours = encoded(open_codec(name, SMALL), numbers.block(SMALL, kv))
    theirs = encoded(open_codec(name, other), numbers.block(other, kv))
    # The bytes of a raw block are what they are.
    assert (ours == theirs) is (name != "raw")


@pytest.mark.parametrize("name", LOSSY)
def test_the_order_in_memory_is_restored(numbers: Numbers, name: str) -> None:
    other = BlockLayout(2, 2, 8, 16, "float32", "layer.kv.token.head.width")
    kv = numbers.kv(SMALL)
    ours = numbers.read(SMALL, there_and_back(open_codec(name, SMALL), numbers.block(SMALL, kv)))
    theirs = numbers.read(other, there_and_back(open_codec(name, other), numbers.block(other, kv)))
    assert (ours == theirs).all()


@pytest.mark.parametrize("name", CODECS)
def test_encoding_leaves_the_block_alone(numbers: Numbers, name: str) -> None:
    block = numbers.block(SMALL, numbers.kv(SMALL))
    before = bytes(block)
    encoded(open_codec(name, SMALL), block)
    assert bytes(block) == before


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_size_of_a_step_changes_nothing(
    numbers: Numbers, name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = BlockLayout(6, 2, 8, 16, "float16")
    codec, block = open_codec(name, layout), numbers.block(layout, numbers.kv(layout))
    whole = encoded(codec, block), bytes(there_and_back(codec, block))
    monkeypatch.setattr("kvferry.store.codec.scratch.STEP_NUMBERS", layout.numbers // steps)
    assert (encoded(codec, block), bytes(there_and_back(codec, block))) == whole


@pytest.mark.parametrize("name", LOSSY)
def test_zeros_stay_zeros(name: str) -> None:
    block = memoryview(bytearray(SMALL.block_bytes))
    assert there_and_back(open_codec(name, SMALL), block) == block


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1], ids=["key", "value"])
def test_numbers_that_are_not_finite_are_refused(numbers: Numbers, name: str, bad: float, where: int) -> None:
    kv = numbers.kv(SMALL)
    kv[1, where, 1, 3, 5] = bad
    with pytest.raises(FormatError, match=f"codec {name}"):
        encoded(open_codec(name, SMALL), numbers.block(SMALL, kv))


@pytest.mark.parametrize("name", CODECS)
def test_a_block_of_another_length_is_refused(name: str) -> None:
    codec = open_codec(name, SMALL)
    with pytest.raises(ValueError, match="a block has 4096 bytes"):
        codec.encode_into(memoryview(bytes(4095)), memoryview(bytearray(codec.payload_bytes)))


@pytest.mark.parametrize("name", CODECS)
def test_a_payload_of_another_length_is_refused(name: str) -> None:
    codec = open_codec(name, SMALL)
    with pytest.raises(ValueError, match="an encoded block has"):
        codec.decode_into(memoryview(bytes(7)), memoryview(bytearray(SMALL.block_bytes)))


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_encoding_again_changes_nothing(numbers: Numbers, name: str) -> None:
    """A block that was loaded and is published anew must not drift."""
    codec = open_codec(name, SMALL)
    once = there_and_back(codec, numbers.block(SMALL, numbers.kv(SMALL)))
    assert there_and_back(codec, once) == once


@pytest.mark.parametrize("name", LOSSY)
def test_threads_do_not_disturb_each_other(numbers: Numbers, name: str) -> None:
    layout = BlockLayout(8, 4, 32, 64, "bfloat16")
    codec = open_codec(name, layout)
    blocks = [numbers.block(layout, numbers.kv(layout, seed)) for seed in range(4)]
    alone = [bytes(there_and_back(codec, block)) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda block: bytes(there_and_back(codec, block)), blocks * 5))
    assert together == alone * 5


def error_bound(name: str, kv: np.ndarray) -> np.ndarray:
    """What each codec promises for each number of [2, tokens, width], one group of tokens long."""
    size = np.abs(kv)
    if name == "fp8":
        # Half a unit in the last place: 1/16 of a normal number, half of 2^-9 below.
        scale = size.max(axis=(1, 2), keepdims=True) / 448
        return np.maximum(size / 16, scale * 2**-10)
    if name == "int8":
        key, value = size[0].max(axis=0, keepdims=True) / 127, size[1].max(axis=1, keepdims=True) / 127
    else:
        key = np.ptp(kv[0], axis=0, keepdims=True) / 15 + np.abs(kv[0].min(axis=0)) * 2**-10 / 15
        value = np.ptp(kv[1], axis=1, keepdims=True) / 15
        value = value + np.abs(kv[1].min(axis=1, keepdims=True)) * 2**-10 / 15
    # Half a scale, which was rounded up to float16: by 2^-10 of it, or by the least float16.
    half = [np.broadcast_to(scale * (1 + 2**-10) / 2 + 2**-24, kv[0].shape) for scale in (key, value)]
    return np.stack(half)


@pytest.mark.parametrize("name", LOSSY)
@given(seed=st.integers(0, 2**32 - 1), size=st.floats(2**-20, 2**10), shift=st.floats(-4, 4))
def test_the_error_stays_within_its_bound(name: str, seed: int, size: float, shift: float) -> None:
    layout = BlockLayout(1, 1, 32, 32, "float32")
    dice = np.random.default_rng(seed)
    kv = ((dice.standard_normal(layout.shape) + shift) * size).astype(np.float32)
    numbers = Numbers()
    back = numbers.read(layout, there_and_back(open_codec(name, layout), numbers.block(layout, kv)))
    error = np.abs(back.astype(np.float64) - kv)[0, :, 0]
    assert (error <= error_bound(name, kv[0, :, 0].astype(np.float64)) * (1 + 1e-5)).all()
