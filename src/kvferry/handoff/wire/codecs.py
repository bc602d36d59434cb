"""How the numbers of KV are written on the wire.

`fp8`, `int8` and `int4` are the store's codecs, group sizes included. `fp16` and `bf16` are 16 bits a number
from an engine that computes in float32; an engine of that very type has nothing to narrow, and its KV
crosses `raw`. A block here is one layer's tokens of one chunk.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...store.codec import CODECS, BlockLayout, Codec, open_codec
from ...store.codec.contract import LossyCodec, Section
from ...store.codec.floats import Floats, narrow, widen
from ...store.codec.scales import GROUP, value_group
from ...store.codec.scratch import scratch

__all__ = [
    "GROUP_TOKENS",
    "WIRE_CODECS",
    "canonical_codec",
    "groups_of",
    "open_wire_codec",
    "wire_dtype_name",
]

GROUP_TOKENS = GROUP
"""Tokens of a channel of keys that share a scale; chunks are cut at multiples of it."""

_NARROW = {"fp16": "float16", "bf16": "bfloat16"}

WIRE_CODECS: tuple[str, ...] = ("raw", *_NARROW, *(name for name in CODECS if name != "raw"))


class _Narrowed(LossyCodec):
    """Sixteen bits a number, rounded to nearest; beyond float16 its largest number."""

    stored: ClassVar[str]

    @classmethod
    def sections(cls, layout: BlockLayout) -> tuple[Section, ...]:
        return (("<u2", layout.shape),)

    def encode_layers(self, numbers: Floats, parts: list[NDArray[Any]]) -> None:
        # Narrowing uses its input up, and this may be the engine's own memory.
        work: Floats = scratch("narrowed", numbers.shape)
        np.copyto(work, numbers)
        narrow(work, parts[0], self.stored)

    def decode_layers(self, parts: list[NDArray[Any]], numbers: Floats) -> None:
        np.copyto(numbers, widen(parts[0], self.stored))


class _Float16(_Narrowed):
    name = "fp16"
    stored = "float16"


class _BFloat16(_Narrowed):
    name = "bf16"
    stored = "bfloat16"


_NARROWED: dict[str, type[Codec]] = {"fp16": _Float16, "bf16": _BFloat16}


def canonical_codec(name: str, dtype: str) -> str:
    """The codec that `name` comes to for an engine of `dtype`: its own 16-bit type is `raw`.

    Raises `ConfigError` for an unknown name, and for narrowing one 16-bit type into the other.
    """
    if name not in WIRE_CODECS:
        raise ConfigError(f"codec: {name!r} is no codec; write one of {', '.join(WIRE_CODECS)}")
    if name not in _NARROW or dtype == "float32":
        return name
    if _NARROW[name] == dtype:
        return "raw"
    raise ConfigError(f"codec: {name} from an engine in {dtype} loses numbers for nothing; write raw")


def open_wire_codec(name: str, layout: BlockLayout) -> Codec:
    """The codec `name` for one layer's tokens of one chunk. Raises `ConfigError`."""
    name = canonical_codec(name, layout.dtype)
    narrowed = _NARROWED.get(name)
    return open_codec(name, layout) if narrowed is None else narrowed(layout)


def wire_dtype_name(dtype: str, codec: str) -> str:
    """`kv_dtype` of the namespace of what crosses: what is lossy never passes for exact."""
    return dtype if canonical_codec(codec, dtype) == "raw" else f"{dtype}+{codec}"


def groups_of(codec: str, layout: BlockLayout) -> str:
    """Which numbers share a scale, for the manifest; empty where there are no scales."""
    match codec:
        case "fp8":
            return "keys and values: one head's tokens of a chunk"
        case "int8":
            return f"keys: 1 channel of {GROUP} tokens; values: 1 token, {layout.head_dim} channels"
        case "int4":
            return f"keys: 1 channel of {GROUP} tokens; values: 1 token, {value_group(layout)} channels"
        case _:
            return ""
