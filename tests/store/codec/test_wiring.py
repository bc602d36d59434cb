"""The setting `codec` reaches the namespace, the price of a block and the bytes of the embedded engine."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvferry.config import Config
from kvferry.store.codec import CODECS, BlockLayout, open_codec

if find_spec("torch") is None:
    pytest.skip("the embedded engine is not installed", allow_module_level=True)

import torch

from kvferry.engines.transformers.arena import Arena
from kvferry.engines.transformers.build import block_layout, namespaces_of
from kvferry.engines.transformers.layout import KvLayout
from kvferry.store.codec import bytes_per_token

FIELDS: dict[str, Any] = {
    "model": "m",
    "weights_revision": "r",
    "tokenizer": "t",
    "attention": {},
    "position": {},
    "implementation": "i",
    "kv_dtype": "float32",
    "layout": "l",
    "block_tokens": 32,
}


@pytest.fixture
def runner() -> Any:
    """As much of a runner as the settings are made from."""
    layout = KvLayout(layers=30, kv_heads=3, width=64, dtype=torch.float32, block_tokens=32)
    return SimpleNamespace(layout=layout, namespace_fields=lambda: dict(FIELDS))


def test_exact_blocks_keep_their_namespace(runner: Any) -> None:
    assert namespaces_of(Config(), runner)["default"].kv_dtype == "float32"


def test_lossy_blocks_have_a_namespace_of_their_own(runner: Any) -> None:
    assert namespaces_of(Config(codec="fp8"), runner)["default"].kv_dtype == "float32+fp8"


@pytest.mark.parametrize("codec", CODECS)
def test_the_gate_prices_the_bytes_that_move(runner: Any, codec: Any) -> None:
    moves = bytes_per_token(codec, block_layout(runner))
    moved = open_codec(codec, block_layout(runner)).payload_bytes
    # A byte a token at most, where the scales of a block do not divide evenly among its tokens.
    assert 0 <= runner.layout.block_tokens * moves - moved < runner.layout.block_tokens


def test_raw_blocks_are_priced_exactly(runner: Any) -> None:
    assert bytes_per_token("raw", block_layout(runner)) == runner.layout.bytes_per_token


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_codec_sees_the_arena_as_the_engine_does(dtype: torch.dtype) -> None:
    layout = KvLayout(layers=2, kv_heads=3, width=8, dtype=dtype, block_tokens=4)
    arena = Arena(1, layout)
    arena.blocks[0] = torch.arange(arena.blocks[0].numel()).reshape(layout.block_shape)
    seen = BlockLayout(2, 3, 4, 8, layout.dtype_name).array(arena.views([0])[0])
    bits = arena.blocks[0] if dtype is torch.float32 else arena.blocks[0].view(torch.uint16)
    assert (np.asarray(bits) == seen).all()
