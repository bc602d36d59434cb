from __future__ import annotations

import pytest
import torch

from kvferry.engines.transformers.layout import KvLayout, usable_blocks

SMOLLM2 = KvLayout(layers=30, kv_heads=3, width=64, dtype=torch.float32, block_tokens=32)


def test_a_token_of_smollm2_weighs_what_the_formula_says() -> None:
    assert SMOLLM2.bytes_per_token == 2 * 30 * 3 * 64 * 4


def test_a_block_of_smollm2_is_1440_kib_in_float32() -> None:
    assert SMOLLM2.block_bytes == 1440 * 1024


def test_the_fingerprint_names_the_dtype() -> None:
    other = KvLayout(layers=30, kv_heads=3, width=64, dtype=torch.bfloat16, block_tokens=32)
    assert SMOLLM2.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(("prompt", "blocks"), [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2)])
def test_the_last_token_is_always_computed(prompt: int, blocks: int) -> None:
    assert usable_blocks(prompt, 8) == blocks
