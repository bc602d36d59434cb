"""Namespaces: everything that must be equal before two replicas may use each other's blocks.

Owns the one ordered table of fields, its canonical encoding and the words for a difference. It knows
nothing of where blocks lie, nor whether the numbers behind two equal names agree: the probe beside the
blocks settles that. Releases stand in the `Manifest`, outside the key, so that an upgrade that leaves the
layout alone keeps the pool.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import cbor2
import msgspec

from ..errors import FormatError

__all__ = ["FIELDS", "FORMAT_VERSION", "Manifest", "Namespace", "canonical_text", "differences"]

FORMAT_VERSION = 1
_MAGIC = "kvferry-namespace"


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """What makes blocks interchangeable. The order of the fields is the order of the encoding.

    Values are text or integers; empty text means that there is none. Raises `FormatError` for a value of
    the wrong type or out of range.
    """

    format_version: int = FORMAT_VERSION
    """Version of this table and its encoding."""
    model: str
    """Name or path-independent identity of the model."""
    weights_revision: str
    """Revision, or the digest of the weights where no revision is known."""
    tokenizer: str
    """Digest of the tokenizer."""
    attention: str
    """`canonical_text` of the attention parameters."""
    position: str
    """`canonical_text` of the position parameters."""
    implementation: str
    """Which attention implementation computed the KV."""
    kv_dtype: str
    """Type of the stored elements."""
    layout: str
    """Fingerprint of the block's byte order, the instruction set on a CPU included."""
    block_tokens: int
    parallel_rank: int = 0
    parallel_size: int = 1
    adapter: str = ""
    adapter_version: str = ""
    tenant: str = "default"
    data_class: str = "default"

    def __post_init__(self) -> None:
        for name in FIELDS:
            _check(name, getattr(self, name))
        for name, least in (("format_version", 1), ("block_tokens", 1), ("parallel_size", 1)):
            if getattr(self, name) < least:
                raise FormatError(
                    f"namespace field {name} must be at least {least}, not {getattr(self, name)}"
                )
        if not 0 <= self.parallel_rank < self.parallel_size:
            raise FormatError(
                f"namespace field parallel_rank must be from 0 to {self.parallel_size - 1} "
                f"(parallel_size is {self.parallel_size}), not {self.parallel_rank}"
            )
        for name in ("model", "weights_revision", "kv_dtype", "layout", "tenant", "data_class"):
            if not getattr(self, name):
                raise FormatError(f"namespace field {name} is empty: blocks without it cannot be told apart")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Namespace:
        """Read `fields()` back: every field of the table, and no other. Raises `FormatError`."""
        for name in fields:
            if name not in FIELDS:
                near = difflib.get_close_matches(str(name), FIELDS, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise FormatError(f"unknown namespace field {name!r}{meant}")
        missing = [name for name in FIELDS if name not in fields]
        if missing:
            raise FormatError(f"namespace lacks {', '.join(missing)}: every field must be there")
        return cls(**fields)

    def fields(self) -> dict[str, str | int]:
        """Name to value, in the order of the table."""
        return {name: getattr(self, name) for name in FIELDS}

    def encoded(self) -> bytes:
        """The canonical bytes: CBOR of [magic, format version, [[name, value], ...]]."""
        table = [[name, getattr(self, name)] for name in FIELDS]
        return cbor2.dumps([_MAGIC, self.format_version, table], canonical=True)

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes: 32 bytes that stand for the namespace in keys and frames."""
        return hashlib.sha256(self.encoded()).digest()

    def with_rank(self, rank: int) -> Namespace:
        """The same namespace for another rank of the same parallel group."""
        return msgspec.structs.replace(self, parallel_rank=rank)

    def describe(self) -> str:
        """One `name: value` line a field, for people; fields without a value are left out."""
        shown = [(name, value) for name, value in self.fields().items() if value != ""]
        width = max(len(name) for name, _ in shown) + 1
        return "\n".join(f"{name + ':':<{width}} {value}" for name, value in shown)


FIELDS: tuple[str, ...] = Namespace.__struct_fields__
"""The names of the table, in order."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote blocks under a namespace: stands beside it, takes no part in its digest."""

    engine: str
    """Engine and release, as "transformers 5.16.1"."""
    connector: str
    """What joined it to the cache, with its release."""
    kvferry: str
    """Release of kvferry."""
    chat_template: str = ""
    """Digest of the chat template: another one gives other tokens, hence other blocks, never wrong ones."""
    created_wall_seconds: float = 0.0
    """Seconds since the epoch."""


def differences(
    ours: Namespace | Mapping[str, Any], theirs: Namespace | Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the fields in which two namespaces differ, in the order of the table.

    Takes plain fields too, since those of another format version may hold names that ours lacks; such
    names come last, sorted.
    """
    left = ours.fields() if isinstance(ours, Namespace) else ours
    right = theirs.fields() if isinstance(theirs, Namespace) else theirs
    foreign = sorted((set(left) | set(right)) - set(FIELDS))
    absent = object()
    return tuple(name for name in (*FIELDS, *foreign) if left.get(name, absent) != right.get(name, absent))


def canonical_text(parameters: Mapping[str, Any]) -> str:
    """One text for equal parameters: JSON without blanks, keys sorted, numbers by value.

    A float with an integral value is written as that integer, since configurations write 10000 and
    10000.0 for one thing; any other float by `repr`. Tuples are lists. Raises `FormatError`, naming the
    path, for anything that is not null, a boolean, a finite number, text, a list or a map with text keys.
    """
    return _render(parameters, "parameters")


def _render(value: Any, path: str) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            if not math.isfinite(value):
                raise FormatError(f"{path} is {value!r}: only finite numbers name a namespace")
            return str(int(value)) if value.is_integer() else repr(float(value))
        case str():
            _check_text(path, value)
            return msgspec.json.encode(str(value)).decode()
        case list() | tuple():
            return f"[{','.join(_render(item, f'{path}[{i}]') for i, item in enumerate(value))}]"
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise FormatError(f"{path} has the key {key!r}: keys must be text")
            pairs = (f"{_render(key, path)}:{_render(value[key], f'{path}.{key}')}" for key in sorted(value))
            return f"{{{','.join(pairs)}}}"
        case _:
            raise FormatError(
                f"{path} is a {type(value).__name__}: give null, a boolean, a number, text, a list or a map"
            )


def _check(name: str, value: Any) -> None:
    expected = _TYPES[name]
    if isinstance(value, bool) or not isinstance(value, expected):
        kind = "an integer" if expected is int else "text"
        raise FormatError(f"namespace field {name} must be {kind}, not {value!r}")
    if isinstance(value, str):
        _check_text(f"namespace field {name}", value)


def _check_text(what: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FormatError(f"{what} is not valid text: {value!r}") from None


_TYPES: dict[str, type] = {
    field.name: int if field.type is int else str for field in msgspec.structs.fields(Namespace)
}
