"""The codecs by name, and what a lossy one does to the name of a block.

Owns the one table of codecs. A lossy codec is part of what makes blocks interchangeable: `kv_dtype_name`
goes into the namespace, so that a lossy block never answers a lookup for an exact one. The name stands for
the codec's whole format, its group sizes included: a codec that is cut otherwise gets another name and id.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ConfigError
from .contract import Codec
from .fp8 import Fp8
from .int4 import Int4
from .int8 import Int8
from .layout import BlockLayout
from .raw import Raw

__all__ = ["CODECS", "bytes_per_token", "kv_dtype_name", "open_codec"]

CODECS: Mapping[str, type[Codec]] = {kind.name: kind for kind in (Raw, Fp8, Int8, Int4)}


def open_codec(name: str, layout: BlockLayout) -> Codec:
    """The codec called `name` for blocks of `layout`. Raises `ConfigError` for an unknown name."""
    return _known(name)(layout)


def kv_dtype_name(dtype: str, codec: str) -> str:
    """`kv_dtype` of a namespace: `float32` for exact blocks, `float32+int8` for lossy ones.

    The engine's type stays in it, since a decoded block depends on both.
    """
    return dtype if _known(codec) is Raw else f"{dtype}+{codec}"


def bytes_per_token(name: str, layout: BlockLayout) -> int:
    """Payload bytes that one token adds to a transfer, rounded up where scales do not divide evenly."""
    return -(-_known(name).encoded_bytes(layout) // layout.block_tokens)


def _known(name: str) -> type[Codec]:
    try:
        return CODECS[name]
    except KeyError:
        raise ConfigError(f"codec: {name!r} is no codec; write one of {', '.join(CODECS)}") from None
