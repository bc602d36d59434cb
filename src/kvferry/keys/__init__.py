"""What a block is called: block hashes, namespaces and pool keys. Pure; time and secrets are the caller's."""

from __future__ import annotations

from .blocks import ChainHasher, block_hashes
from .namespace import Manifest, Namespace, canonical_text, differences
from .pool import DEFAULT_SECRET, PoolKeys, pool_key, record_key, secret_of

__all__ = [
    "DEFAULT_SECRET",
    "ChainHasher",
    "Manifest",
    "Namespace",
    "PoolKeys",
    "block_hashes",
    "canonical_text",
    "differences",
    "pool_key",
    "record_key",
    "secret_of",
]
