"""Bytes of a KV dtype, block scales included.

A cache dtype is `block_bytes` for every `block_numbers` in a row, plus `head_bytes` a head and token for
scales that lie beside it. ggml's block types count their scales (q8_0 is 34 bytes for 32 numbers, not 32).
"""

from __future__ import annotations

import difflib

import msgspec

from ..errors import UsageError

__all__ = ["DS_MLA", "KV_TYPES", "KvType", "kv_type", "latent_bytes"]


class KvType(msgspec.Struct, frozen=True):
    """One dtype of a cache."""

    name: str
    block_numbers: int
    block_bytes: int
    head_bytes: int = 0
    """Scale bytes a head and token, for K and again for V."""

    def row_bytes(self, heads: int, width: int) -> int:
        """Bytes of `heads` x `width` numbers of one token. Raises `UsageError` where blocks do not fit."""
        numbers = heads * width
        if numbers % self.block_numbers:
            raise UsageError(
                f"kv dtype {self.name}: {heads} heads of width {width} are not a multiple of "
                f"{self.block_numbers}; take bf16 or fp8"
            )
        return numbers // self.block_numbers * self.block_bytes + heads * self.head_bytes


_PLAIN = {
    "float32": (4, ("fp32", "f32", "float")),
    "bfloat16": (2, ("bf16",)),
    "float16": (2, ("fp16", "f16", "half")),
    "fp8": (1, ("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "fp8_inc")),
    "int8": (1, ()),
}
_BLOCKS = {
    "q8_0": (32, 34, 0),
    "q5_1": (32, 24, 0),
    "q5_0": (32, 22, 0),
    "q4_1": (32, 20, 0),
    "q4_0": (32, 18, 0),
    "iq4_nl": (32, 18, 0),
    "nvfp4": (16, 9, 0),
    "mxfp4": (32, 17, 0),
    "int4": (2, 1, 0),
    "int8_per_token_head": (1, 1, 4),
    "fp8_per_token_head": (1, 1, 4),
}
DS_MLA = KvType("fp8_ds_mla", 1, 1)
"""A latent in fp8 with its scales, and its rotary part in 16 bits: `latent_bytes` knows how."""

KV_TYPES: dict[str, KvType] = {
    **{
        alias: KvType(name, 1, size) for name, (size, aliases) in _PLAIN.items() for alias in (name, *aliases)
    },
    **{name: KvType(name, *numbers) for name, numbers in _BLOCKS.items()},
    DS_MLA.name: DS_MLA,
}
"""By every name that an engine gives it."""


def kv_type(name: str, flag: str = "--kv-dtype") -> KvType:
    """The dtype of a name such as "bf16", "q8_0" or "torch.float16". Raises `UsageError`."""
    found = KV_TYPES.get(name.removeprefix("torch.").lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), KV_TYPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"write one of {', '.join(sorted(KV_TYPES))}"
        raise UsageError(f"{flag}: unknown KV dtype {name!r}; {hint}")
    return found


def latent_bytes(kind: KvType, rank: int, rope_width: int) -> int:
    """Bytes of one token's latent and rotary key.

    fp8_ds_mla keeps the latent in fp8 with a float32 scale for each 128 numbers and the rotary key in 16
    bits: 512 + 4 x 4 + 2 x 64 = 656.
    """
    if kind is DS_MLA:
        return rank + 4 * -(-rank // 128) + 2 * rope_width
    return kind.row_bytes(1, rank + rope_width)
