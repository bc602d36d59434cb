"""vLLM's KV events as they come over ZMQ, decoded.

A message has three frames: topic, sequence number (64 bits, big-endian), and msgpack of
[time, events, data-parallel rank]. An event is a map with a "type", or in older releases an array that begins
with it; both are read. Source: vLLM 0.32, `distributed/kv_events.py`. Hashes are opaque.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from ...errors import FormatError

__all__ = ["Batch", "Cleared", "Event", "Removed", "Stored", "decode_batch"]

Hash: TypeAlias = int | bytes

_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
           "extra_keys")  # fmt: skip
_REMOVED = ("block_hashes", "medium")


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks that became reusable, in order, behind `parent` (None: from the prompt's beginning)."""

    hashes: tuple[Hash, ...]
    parent: Hash | None
    token_ids: Sequence[int]
    block_tokens: int
    medium: str
    adapter: str
    extra_keys: Sequence[Any]
    """One entry a block: what beside its tokens entered its hash; empty where the release does not say."""
    group: int
    """KV cache group: a hybrid model stores every token once in each."""
    session: str
    """The client's own id of its conversation; empty without one."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that were evicted."""

    hashes: tuple[Hash, ...]
    medium: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was dropped."""


Event: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one message says."""

    seconds: float
    """Wall clock."""
    rank: int
    events: tuple[Event, ...]


def decode_batch(payload: bytes) -> Batch:
    """The third frame of a message. Raises `FormatError`. Events of unknown types are left out."""
    try:
        body = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise FormatError(f"not a batch of KV events: {error}") from error
    if isinstance(body, Mapping):
        body = [body.get("ts"), body.get("events"), body.get("data_parallel_rank")]
    if not (isinstance(body, list) and len(body) >= 2 and isinstance(body[0], int | float)):
        raise FormatError("not a batch of KV events: it is not [time, events, rank]")
    if not isinstance(body[1], list):
        raise FormatError("not a batch of KV events: its events are no list")
    rank = body[2] if len(body) > 2 and isinstance(body[2], int) else 0
    found = [event for one in body[1] if (event := _event(one)) is not None]
    return Batch(float(body[0]), rank, tuple(found))


def _event(raw: Any) -> Event | None:
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind: Any = raw[0]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields: Mapping[str, Any] = dict(zip(names, raw[1:], strict=False))
    elif isinstance(raw, Mapping):
        kind, fields = raw.get("type"), raw
    else:
        raise FormatError("not a KV event: it is neither a map with a type nor an array that begins with one")
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        return Removed(_hashes(fields), _medium(fields))
    return Cleared() if kind == "AllBlocksCleared" else None


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes = _hashes(fields)
    tokens, size = fields.get("token_ids"), fields.get("block_size")
    if not isinstance(tokens, list) or not isinstance(size, int) or size < 1:
        raise FormatError("BlockStored without token_ids or block_size: cannot tell what its blocks hold")
    if len(tokens) != len(hashes) * size:
        raise FormatError(f"BlockStored of {len(hashes)} blocks of {size} has {len(tokens)} token ids")
    adapter = fields.get("lora_name") or fields.get("lora_id")
    return Stored(
        hashes=hashes,
        parent=fields.get("parent_block_hash"),
        token_ids=tokens,
        block_tokens=size,
        medium=_medium(fields),
        adapter="" if adapter is None else str(adapter),
        extra_keys=fields.get("extra_keys") or (),
        group=fields.get("group_idx") or 0,
        session=str(fields.get("session_id") or ""),
    )


def _hashes(fields: Mapping[str, Any]) -> tuple[Hash, ...]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not all(isinstance(one, int | bytes) for one in hashes):
        raise FormatError("a KV event without block_hashes")
    return tuple(hashes)


def _medium(fields: Mapping[str, Any]) -> str:
    """In capitals, as releases do not agree; the GPU where none is named."""
    return str(fields.get("medium") or "GPU").upper()
