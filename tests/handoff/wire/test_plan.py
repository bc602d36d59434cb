from __future__ import annotations

import numpy as np
import pytest
from crossing import HEADS, LAYERS, TOKENS, WIDTH, ids, manifest_of, namespace
from hypothesis import given
from hypothesis import strategies as st

from kvferry.handoff.wire.codecs import WIRE_CODECS
from kvferry.handoff.wire.manifest import make_manifest
from kvferry.handoff.wire.memory import HostKv, copy_rows
from kvferry.handoff.wire.plan import Plan


@given(st.integers(1, 3000), st.integers(1, 40), st.sampled_from(WIRE_CODECS))
def test_every_token_of_every_layer_is_in_one_chunk(tokens: int, groups: int, codec: str) -> None:
    manifest = make_manifest(
        namespace(), ids(tokens + 1), handoff_id="p", layers=2, kv_heads=1, head_dim=32, dtype="float32",
        codec=codec, chunk_tokens=32 * groups,
    )  # fmt: skip
    plan = Plan(manifest)
    chunks = [plan.chunk(index) for index in range(plan.chunks)]
    for layer in range(2):
        of_layer = [chunk for chunk in chunks if chunk.layer == layer]
        assert [t for c in of_layer for t in range(c.start, c.stop)] == list(range(tokens))
    assert [chunk.layer for chunk in chunks] == sorted(chunk.layer for chunk in chunks)
    assert all(c.stop - c.start <= 32 * groups for c in chunks)
    # No scale is shared by more tokens than the manifest says.
    assert all((c.stop - c.start) % 32 == 0 or c.stop - c.start < 32 for c in chunks)
    assert sum(chunk.payload_bytes for chunk in chunks) == plan.payload_bytes
    assert max(chunk.payload_bytes for chunk in chunks) == plan.largest_bytes


def test_a_layer_is_whole_with_its_last_chunk() -> None:
    plan = Plan(manifest_of())
    per_layer = len(plan.parts)
    assert per_layer == 4
    assert [plan.layers_before(k) for k in (0, per_layer - 1, per_layer, 2 * per_layer + 1)] == [0, 0, 1, 2]


def test_there_is_no_chunk_beyond_the_last() -> None:
    plan = Plan(manifest_of())
    with pytest.raises(IndexError):
        plan.chunk(plan.chunks)


BOUNDS = {"raw": 0.0, "fp16": 0.002, "bf16": 0.02, "fp8": 0.2, "int8": 0.03, "int4": 0.3}


@pytest.mark.parametrize("codec", WIRE_CODECS)
def test_a_codec_carries_within_its_error(codec: str) -> None:
    plan = Plan(manifest_of(codec=codec))
    kv = np.random.default_rng(1).standard_normal((LAYERS, 2, HEADS, TOKENS, WIDTH)).astype(np.float32)
    before = kv.copy()
    source, out = HostKv(kv.view(np.uint8)), np.zeros_like(kv)
    sink = HostKv(out.view(np.uint8))
    for index in range(plan.chunks):
        chunk = plan.chunk(index)
        block, wire = bytearray(chunk.block_bytes), bytearray(chunk.payload_bytes)
        copy_rows(source.read(chunk.layer, chunk.start, chunk.stop), memoryview(block))
        plan.codec(chunk).encode_into(memoryview(block), memoryview(wire))
        plan.codec(chunk).decode_into(memoryview(wire), memoryview(block))
        copy_rows(sink.room(chunk.layer, chunk.start, chunk.stop), memoryview(block), back=True)
    assert np.abs(out - kv).max() <= BOUNDS[codec]
    assert np.array_equal(kv, before)
