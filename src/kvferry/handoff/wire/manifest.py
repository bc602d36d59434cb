"""What is handed over, said before the first chunk: which KV, of which prompt, in which form.

Owns the document, its limits, and the seal that only a holder of the tenant's secret can make: a transport
carries it as bytes. Refuses to know chunks and memory. Version 1:

    32 bytes   BLAKE2b-256 of the JSON, keyed with the tenant's secret, person "kvferry-handoff"
    the rest   the manifest as one JSON object, every field present, no other accepted; `accept_mapped` alone
               is left out where the request says nothing

Positions are runs [start, stop) of the prompt, one for a whole prefill; a compacted one keeps the positions
that its keys were rotated to. `prompt_digest` covers the token ids from the first to the last position:
where a model looks back on tokens that were left out, their ids still matter.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ...errors import FormatError
from ...keys.namespace import Namespace, differences
from ...outcomes import Outcome
from ...store.codec import BlockLayout
from .codecs import GROUP_TOKENS, canonical_codec, groups_of, wire_dtype_name
from .failed import HandoffFailed

__all__ = [
    "DEFAULT_CHUNK_TOKENS",
    "MANIFEST_VERSION",
    "MOST_MANIFEST_BYTES",
    "Manifest",
    "make_manifest",
    "prompt_digest",
    "require_same",
    "seal",
    "unseal",
]

MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 64 << 20
DEFAULT_CHUNK_TOKENS = 512

_SEAL_BYTES = 32
_PERSON = b"kvferry-handoff"
_MOST_TOKENS = 1 << 26
_MOST_LAYERS = 1 << 14
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prefill. Raises `FormatError` for what makes no sense, on either side."""

    version: int
    handoff_id: str
    """Letters, digits, dots, dashes, underscores: the same on every attempt."""
    namespace: str
    """Hex digest of `fields`."""
    fields: dict[str, str | int]
    """The namespace in full, so that a receiver can name the field that differs."""
    prompt_tokens: int
    """Tokens of the whole prompt; the last one at least is left to the receiver."""
    prompt_digest: str
    token_ids: tuple[int, ...]
    """The prompt, where the receiver does not have it from elsewhere; else empty."""
    positions: tuple[tuple[int, int], ...]
    tokens: int
    """How many tokens' KV comes: the positions counted."""
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    codec: str
    groups: str
    chunk_tokens: int
    sunk: bool
    """The prefill is done: its time is spent whatever is decided."""
    prefill_seconds: float
    """What the sender expects its prefill to take; 0 where it is sunk."""
    accept_mapped: bool | None = None
    """The request's own word on KV that was mapped from another model; None: it says nothing."""

    def __post_init__(self) -> None:
        if self.version != MANIFEST_VERSION:
            raise FormatError(
                f"hand-off manifest of version {self.version}; this release reads {MANIFEST_VERSION}"
            )
        if not _ID.fullmatch(self.handoff_id):
            raise FormatError(
                f"hand-off id {self.handoff_id[:40]!r}: write 1 to 128 letters, digits, '.', '-' or '_'"
            )
        for name, value, most in (
            ("tokens", self.tokens, _MOST_TOKENS),
            ("prompt_tokens", self.prompt_tokens, _MOST_TOKENS),
            ("layers", self.layers, _MOST_LAYERS),
            ("kv_heads", self.kv_heads, _MOST_LAYERS),
            ("head_dim", self.head_dim, _MOST_LAYERS),
        ):
            if not 1 <= value <= most:
                raise FormatError(f"hand-off manifest: {name} is {value}; it must be from 1 to {most}")
        at = 0
        for start, stop in self.positions:
            if not at <= start < stop:
                raise FormatError(f"hand-off manifest: positions {self.positions} are no rising runs")
            at = stop
        if sum(stop - start for start, stop in self.positions) != self.tokens:
            raise FormatError(f"hand-off manifest: positions {self.positions} are not {self.tokens} tokens")
        if at >= self.prompt_tokens:
            raise FormatError(
                f"hand-off manifest: positions reach {at} of a prompt of {self.prompt_tokens} tokens; "
                "the last one is the receiver's to compute"
            )
        if self.chunk_tokens < GROUP_TOKENS or self.chunk_tokens % GROUP_TOKENS:
            raise FormatError(
                f"hand-off chunks of {self.chunk_tokens} tokens: write a multiple of {GROUP_TOKENS}"
            )
        if self.token_ids and len(self.token_ids) != self.prompt_tokens:
            raise FormatError(
                f"hand-off manifest: {len(self.token_ids)} ids for {self.prompt_tokens} prompt tokens"
            )
        if not (0.0 <= self.prefill_seconds < float("inf")):
            raise FormatError(f"hand-off manifest: prefill_seconds is {self.prefill_seconds}")
        if canonical_codec(self.codec, self.dtype) != self.codec:
            raise FormatError(f"hand-off manifest: codec {self.codec} of {self.dtype} is raw; write raw")
        if self.groups != groups_of(self.codec, self.layout(GROUP_TOKENS)):
            raise FormatError(f"hand-off manifest: codec {self.codec} has no groups {self.groups!r} here")
        if Namespace.from_fields(self.fields).digest().hex() != self.namespace:
            raise FormatError("hand-off manifest: the digest is not that of the namespace's fields")

    def layout(self, tokens: int) -> BlockLayout:
        """One layer's KV of `tokens` tokens, as a codec sees it."""
        return BlockLayout(1, self.kv_heads, tokens, self.head_dim, self.dtype)

    @property
    def namespace_digest(self) -> bytes:
        """32 bytes."""
        return bytes.fromhex(self.namespace)

    @property
    def lossy(self) -> bool:
        """Whether the KV that is installed differs from what was computed."""
        return self.codec != "raw"


def prompt_digest(token_ids: Sequence[int]) -> str:
    """SHA-256, in hex, of the ids as little-endian 32-bit integers."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).hexdigest()


def make_manifest(
    namespace: Namespace,
    token_ids: Sequence[int],
    *,
    handoff_id: str,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: str,
    codec: str = "raw",
    tokens: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    sunk: bool = True,
    prefill_seconds: float = 0.0,
    with_ids: bool = True,
    accept_mapped: bool | None = None,
) -> Manifest:
    """The manifest of the first `tokens` of a prompt; None: all but the last one.

    `namespace` is the engine's, for exact KV: what the codec does to it is added here. Raises `FormatError`
    or `ConfigError`.
    """
    count = len(token_ids) - 1 if tokens is None else tokens
    codec = canonical_codec(codec, dtype)
    fields = msgspec.structs.replace(namespace, kv_dtype=wire_dtype_name(dtype, codec))
    return Manifest(
        version=MANIFEST_VERSION,
        handoff_id=handoff_id,
        namespace=fields.digest().hex(),
        fields=fields.fields(),
        prompt_tokens=len(token_ids),
        prompt_digest=prompt_digest(token_ids[:count]),
        token_ids=tuple(token_ids) if with_ids else (),
        positions=((0, count),),
        tokens=count,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        codec=codec,
        groups=groups_of(codec, BlockLayout(1, kv_heads, GROUP_TOKENS, head_dim, dtype)),
        chunk_tokens=chunk_tokens,
        sunk=sunk,
        prefill_seconds=0.0 if sunk else prefill_seconds,
        accept_mapped=accept_mapped,
    )


def seal(manifest: Manifest, secret: bytes) -> bytes:
    """The bytes that a transport carries."""
    document = msgspec.json.encode(manifest)
    return _seal_of(document, secret) + document


def unseal(data: bytes, secret: bytes) -> Manifest:
    """The manifest in `data`.

    Raises HandoffFailed (incompatible) where it was not sealed with this tenant's secret, and FormatError
    where it does not parse or makes no sense.
    """
    document = data[_SEAL_BYTES:]
    if not hmac.compare_digest(_seal_of(document, secret), data[:_SEAL_BYTES]):
        raise HandoffFailed(
            Outcome.INCOMPATIBLE,
            "the hand-off bears no seal of this tenant: tenant_secret differs",
        )
    try:
        return msgspec.json.decode(document, type=Manifest)
    except msgspec.DecodeError as error:
        raise FormatError(f"hand-off manifest: {error}") from error


def require_same(
    manifest: Manifest, namespace: Namespace, *, codec: str, token_ids: Sequence[int] | None = None
) -> None:
    """Refuse KV that is not this replica's own, or of another prompt.

    `namespace` is this engine's for exact KV, `codec` the one that this receiver agreed to. Raises
    HandoffFailed (incompatible) that names the fields which differ.
    """
    dtype = namespace.kv_dtype
    ours = msgspec.structs.replace(namespace, kv_dtype=wire_dtype_name(dtype, canonical_codec(codec, dtype)))
    differing = differences(ours, manifest.fields)
    if differing:
        told = "; ".join(
            f"{name} is {_short(manifest.fields, name)} there, {_short(ours.fields(), name)} here"
            for name in differing
        )
        raise HandoffFailed(Outcome.INCOMPATIBLE, f"the hand-off's namespace is not ours: {told}")
    wanted = token_ids if token_ids is not None else manifest.token_ids
    if not wanted:
        raise HandoffFailed(Outcome.INCOMPATIBLE, "neither the hand-off nor the request says the prompt")
    if len(wanted) != manifest.prompt_tokens or (
        prompt_digest(wanted[: manifest.positions[-1][1]]) != manifest.prompt_digest
    ):
        raise HandoffFailed(Outcome.INCOMPATIBLE, "the hand-off is of another prompt")


def _seal_of(document: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=_SEAL_BYTES, key=secret, person=_PERSON).digest()


def _short(fields: Mapping[str, str | int], name: str) -> str:
    return str(fields.get(name, "not said"))[:80]
