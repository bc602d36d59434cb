"""What mapped KV is called, and why it is never taken for the real thing.

Owns the derived namespace and the one question that a consumer must ask. A map is lossy by declaration: the
namespace of what it makes differs from the target's native one in its implementation, so no exact lookup
leads to it; and it is used only where operator and caller let it be.
"""

from __future__ import annotations

import json
import re

import msgspec

from ...errors import FormatError
from ...keys import Namespace, canonical_text
from .shapes import ModelKv

__all__ = ["MappedFrom", "check_models", "mapped_from", "mapped_namespace", "refusal"]

_MARK = "mapped "
_HEX = re.compile(r"[0-9a-f]{64}")


class MappedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Where mapped KV comes from: digests in hex."""

    map: str
    source: str
    """The source's namespace."""
    target: str
    """The native namespace that it stands in for."""


def mapped_namespace(source: Namespace, target: Namespace, map_digest: str) -> Namespace:
    """The namespace of `source`'s KV mapped for `target`: a function of the two and of the map.

    Raises `FormatError` where source and target differ in tenant or data class (a map crosses no boundary of
    trust), or the source is itself mapped.
    """
    if not _HEX.fullmatch(map_digest):
        raise FormatError(f"map digest {map_digest!r} is not a SHA-256 in hex")
    for name in ("tenant", "data_class"):
        if getattr(source, name) != getattr(target, name):
            raise FormatError(
                f"namespace field {name} is {getattr(source, name)!r} at the source and "
                f"{getattr(target, name)!r} at the target: a map does not cross it"
            )
    for side, namespace in (("source", source), ("target", target)):
        if mapped_from(namespace) is not None:
            raise FormatError(f"the {side}'s namespace is itself mapped: errors of maps are not piled up")
    origin = {"map": map_digest, "source": source.digest().hex(), "target": target.digest().hex()}
    return msgspec.structs.replace(target, implementation=_MARK + canonical_text(origin))


def mapped_from(namespace: Namespace) -> MappedFrom | None:
    """Where the namespace's KV was mapped from; None for a native one."""
    if not namespace.implementation.startswith(_MARK):
        return None
    try:
        fields = json.loads(namespace.implementation.removeprefix(_MARK))
        return msgspec.convert(fields, MappedFrom)
    except (ValueError, msgspec.ValidationError) as error:
        raise FormatError(f"namespace field implementation: not a map's mark: {error}") from error


def refusal(
    wanted: Namespace, found: Namespace, *, permitted: bool, accepted: bool | None = None
) -> str | None:
    """Why KV of namespace `found` may not serve a request for `wanted`; None where it may.

    `permitted` is the operator's word that mapped KV may serve requests here, `accepted` the caller's own
    (`accept_mapped` of the request's fields); None: the caller says nothing, and the operator's is enough. A
    request always wants a native namespace: equality with a mapped one does not make it exact.
    """
    if mapped_from(wanted) is not None:
        return "mapped KV is never what is looked up: ask for the native namespace and accept mapped KV"
    if found == wanted:
        return None
    origin = mapped_from(found)
    if origin is None:
        return "another namespace"
    if origin.target != wanted.digest().hex():
        return "mapped for another namespace"
    if accepted is False:
        return "mapped KV is lossy and the request does not accept it"
    if not permitted:
        return "mapped KV is lossy and this node does not permit it (--accept-mapped)"
    return None


def check_models(model: ModelKv, found: ModelKv | Namespace, side: str) -> None:
    """Raise `FormatError`, naming the field, where `found` is not the model that the map was fitted on."""
    called = found.model if isinstance(found, Namespace) else found.name
    for name in ("weights_revision", "tokenizer", "position"):
        if getattr(model, name) != getattr(found, name):
            raise FormatError(
                f"the map's {side} is {model.name}; {called} differs in {name}: fit a map for it"
            )
