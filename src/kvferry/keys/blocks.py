"""Block hashes: vLLM's `sha256_cbor` chain, byte for byte.

Owns the name of a block inside one namespace: what its tokens are and what stands before them. It knows
nothing of the model, the tenant or the tier; `namespace.py` and `pool.py` add those.

The chain, with h(x) = sha256(canonical CBOR of x) and seed "vllm-none-hash" unless another is given:

    parent of the first block = h(seed)
    hash of a block           = h([parent, [token, ...], extra])
    extra                     = [["lora", name, path]] if any, then ["cache_salt", salt] on the first
                                block; null when there is neither

Only full blocks have a hash. Source: vLLM 0.32, `--prefix-caching-hash-algo sha256_cbor`; hashes made by
that release are the test's golden file.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import cbor2
import numpy as np
import numpy.typing as npt

from ..errors import InputError

__all__ = ["DEFAULT_SEED", "LARGEST_TOKEN", "ChainHasher", "block_hashes"]

DEFAULT_SEED = "vllm-none-hash"
"""What vLLM starts the chain from; PYTHONHASHSEED overrides it there, the `seed` argument here."""

LARGEST_TOKEN = 2**32 - 1

_TOKENS_AT_ONCE = 4096
"""How much is encoded in one go: enough to spread numpy's call costs, little enough to stay in cache."""

# CBOR writes an unsigned integer in 1, 2, 3 or 5 bytes: the value itself, or a head byte and the value
# big-endian. Each token gets an 8-byte lane; its class picks the head byte and the lane bytes to keep.
_HEADS: npt.NDArray[np.uint64] = np.array([0, 0x18 << 8, 0x19 << 16, 0x1A << 32], dtype=np.uint64)
_KEPT: npt.NDArray[np.uint64] = (
    (np.arange(8) >= 8 - np.array([[1], [2], [3], [5]])).astype(np.uint8).view(np.uint64).ravel()
)


class ChainHasher:
    """A hash chain that grows with its tokens: `append` what came, read `hashes`.

    `salt` is the request's cache_salt and `lora` the adapter's (name, path). Not for use from two threads.
    """

    __slots__ = ("_block_tokens", "_first_tail", "_hashes", "_head", "_parent", "_pending", "_tail")

    def __init__(
        self,
        block_tokens: int,
        *,
        salt: str | None = None,
        lora: tuple[str, str] | None = None,
        seed: str | None = None,
    ) -> None:
        if isinstance(block_tokens, bool) or not isinstance(block_tokens, int) or block_tokens < 1:
            raise InputError(f"block_tokens must be an integer of at least 1, not {block_tokens!r}")
        if salt == "":
            raise InputError("the cache salt is empty: leave it out, or give at least one character")
        if lora is not None and len(lora) != 2:
            raise InputError(f"an adapter is a (name, path) pair, not {lora!r}")
        adapter = [] if lora is None else [["lora", *lora]]
        salted = adapter if salt is None else [*adapter, ["cache_salt", salt]]
        self._block_tokens = block_tokens
        self._head = _array_head(block_tokens)
        self._first_tail = _encode(salted or None, "the cache salt or the adapter")
        self._tail = _encode(adapter or None, "the adapter")
        encoded_seed = _encode(DEFAULT_SEED if seed is None else seed, "the hash seed")
        self._parent = hashlib.sha256(encoded_seed).digest()
        self._pending: list[int] = []
        self._hashes: list[bytes] = []

    @property
    def hashes(self) -> Sequence[bytes]:
        """32 bytes for every full block so far, in order. The chain's own list: do not change it."""
        return self._hashes

    @property
    def tokens(self) -> int:
        """How many tokens were appended, those of the unfinished block included."""
        return len(self._hashes) * self._block_tokens + len(self._pending)

    def append(self, token_ids: Sequence[int]) -> list[bytes]:
        """Add tokens; the hashes of the blocks that they complete.

        Raises `InputError` for a token that is not an integer from 0 to `LARGEST_TOKEN`, and then adds
        nothing.
        """
        tokens = _checked(token_ids, self.tokens)
        if self._pending:
            tokens = array("I", self._pending) + tokens
        full = len(tokens) - len(tokens) % self._block_tokens
        self._pending = tokens[full:].tolist()
        known = len(self._hashes)
        step = max(1, _TOKENS_AT_ONCE // self._block_tokens) * self._block_tokens
        for start in range(0, full, step):
            self._extend(tokens[start : min(start + step, full)])
        return self._hashes[known:]

    def _extend(self, tokens: array[int]) -> None:
        encoded, ends = _encode_tokens(tokens, self._block_tokens)
        sha256, head, parent = hashlib.sha256, self._head, self._parent
        tail = self._tail if self._hashes else self._first_tail
        add = self._hashes.append
        start = 0
        for end in ends:
            # An array of three whose first item is a byte string of 32.
            parent = sha256(b"\x83\x58\x20" + parent + head + encoded[start:end] + tail).digest()
            add(parent)
            start, tail = end, self._tail
        self._parent = parent


def block_hashes(
    token_ids: Sequence[int],
    block_tokens: int,
    *,
    salt: str | None = None,
    lora: tuple[str, str] | None = None,
    seed: str | None = None,
) -> list[bytes]:
    """Hashes of the full blocks of a prompt, 32 bytes each; the tail behind the last one has none.

    Arguments and errors as in `ChainHasher`.
    """
    return ChainHasher(block_tokens, salt=salt, lora=lora, seed=seed).append(token_ids)


def _checked(token_ids: Sequence[int], before: int) -> array[int]:
    """The tokens as 32-bit unsigned integers; array("I") refuses everything else at C speed."""
    if isinstance(token_ids, str | bytes | bytearray):
        raise InputError(f"token ids are a list of integers, not {type(token_ids).__name__}")
    try:
        return array("I", token_ids)
    except (TypeError, OverflowError):
        for index, token in enumerate(token_ids):
            try:
                array("I", [token])
            except (TypeError, OverflowError):
                raise InputError(
                    f"token ids are integers from 0 to {LARGEST_TOKEN}; token {before + index} is {token!r}"
                ) from None
        raise


def _encode_tokens(tokens: array[int], block_tokens: int) -> tuple[bytes, list[int]]:
    """CBOR of every token, end to end, and where each block ends in it. `tokens` fill whole blocks."""
    values = np.frombuffer(tokens, dtype=np.uint32)
    width = (values >= 24).view(np.int8) + (values >= 256)
    width += values >= 65536
    lanes = _HEADS.take(width)
    lanes |= values
    kept = _KEPT.take(width).view(np.bool_).nonzero()[0]
    encoded = lanes.astype(">u8").view(np.uint8).take(kept).tobytes()
    block_lane_bytes = 8 * block_tokens
    boundaries = np.arange(block_lane_bytes, 8 * len(tokens) + 1, block_lane_bytes)
    ends: list[int] = kept.searchsorted(boundaries).tolist()
    return encoded, ends


def _array_head(length: int) -> bytes:
    """The head of a CBOR array: that of an unsigned integer with major type 4."""
    integer = cbor2.dumps(length)
    return bytes([integer[0] | 0x80]) + integer[1:]


def _encode(value: object, what: str) -> bytes:
    try:
        return cbor2.dumps(value, canonical=True)
    except (UnicodeEncodeError, cbor2.CBOREncodeError) as error:
        raise InputError(f"{what} must be valid text: {error}") from None
