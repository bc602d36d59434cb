"""Bytes of dtypes, scales included."""

from __future__ import annotations

import pytest

from kvferry.errors import UsageError
from kvferry.model.dtypes import DS_MLA, kv_type, latent_bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", 2048),
        ("torch.float16", 2048),
        ("fp8_e4m3", 1024),
        ("float32", 4096),
        ("q8_0", 1088),
        ("q4_0", 576),
        ("q4_1", 640),
        ("q5_0", 704),
        ("q5_1", 768),
        ("nvfp4", 576),
        ("int4", 512),
        ("int8_per_token_head", 1024 + 8 * 4),
    ],
)
def test_eight_heads_of_128(name: str, expected: int) -> None:
    assert kv_type(name).row_bytes(8, 128) == expected


def test_a_row_that_blocks_do_not_fit() -> None:
    with pytest.raises(UsageError, match="not a multiple of 32"):
        kv_type("q8_0").row_bytes(1, 80)


def test_an_unknown_dtype() -> None:
    with pytest.raises(UsageError, match="did you mean 'fp8_e4m3'"):
        kv_type("fp8_e4m4")


def test_a_latent_in_fp8_with_scales() -> None:
    assert latent_bytes(DS_MLA, 512, 64) == 656


def test_a_latent_in_q8_0() -> None:
    assert latent_bytes(kv_type("q8_0"), 512, 64) == 612
