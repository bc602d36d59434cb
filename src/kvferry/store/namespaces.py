"""What lies beside the blocks of a namespace: who it is, who wrote it, and a probe that proves it.

Owns the notes and the numerical comparison by which a newcomer is let in. Refuses to know what the fields
mean and how a probe is computed.

    namespaces/<digest hex>/fields            the canonical fields of the namespace (JSON)
    namespaces/<digest hex>/members/<digest>  one manifest (JSON), named by its own content
    namespaces/<digest hex>/probe             KV of a fixed short prompt (MessagePack: dtype, shape, data)

Names can lie: two replicas may agree on every field and hold other weights. So a newcomer computes the probe
itself and compares; beyond the tolerance the namespace is not its own, whatever the names say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .tier import Tier

__all__ = ["Joined", "Refused", "join", "manifests", "others", "relative_errors"]

_ROOT = "namespaces/"
_DTYPES = ("float32", "float16")


class Joined(msgspec.Struct, frozen=True):
    """The namespace is this replica's: it may read and publish."""

    first: bool
    """This replica's probe is the one that others are compared with."""
    worst_error: float
    """Largest relative L2 error over the probe's leading axis (layers); 0 for the first."""


class Refused(msgspec.Struct, frozen=True):
    """The namespace's blocks were computed by something else: neither read nor publish."""

    reason: str
    worst_error: float | None = None
    worst_index: int | None = None
    """Position on the leading axis (the layer) with the largest error."""


class _Probe(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def join(
    tier: Tier,
    namespace_digest: bytes,
    fields: Mapping[str, Any],
    manifest: Mapping[str, Any],
    probe: NDArray[np.float32],
    tolerance: float,
    timeout_seconds: float,
) -> Joined | Refused:
    """Announce this replica, and compare its probe with the namespace's.

    `probe` is float32 with layers on its leading axis; `tolerance` bounds the relative L2 error per layer.
    The first replica writes the probe. `timeout_seconds` bounds each of up to four calls of the tier, whose
    `StoreError`s pass through. A refused replica leaves no manifest.
    """
    root = _ROOT + namespace_digest.hex()
    if not np.isfinite(probe).all():
        return Refused("the probe of this replica has values that are not finite")
    tier.write_note(f"{root}/fields", msgspec.json.encode(fields), timeout_seconds, if_absent=True)
    first = tier.write_note(f"{root}/probe", _encode(probe), timeout_seconds, if_absent=True)
    worst = 0.0
    if not first:
        written = tier.read_note(f"{root}/probe", timeout_seconds)
        verdict = _compare(probe, written, tolerance)
        if isinstance(verdict, Refused):
            return verdict
        worst = verdict
    document = msgspec.json.encode(manifest, order="deterministic")
    member = hashlib.sha256(document).hexdigest()[:16]
    # Named by content: any number of replicas add theirs at once, and equal ones are one note.
    tier.write_note(f"{root}/members/{member}", document, timeout_seconds, if_absent=True)
    return Joined(first, worst)


def manifests(tier: Tier, namespace_digest: bytes, timeout_seconds: float) -> list[dict[str, Any]]:
    """The different manifests of those who joined."""
    names = tier.notes(f"{_ROOT}{namespace_digest.hex()}/members/", timeout_seconds)
    documents = [tier.read_note(name, timeout_seconds) for name in names]
    return [_json(document) for document in documents if document is not None]


def others(tier: Tier, timeout_seconds: float, *, than: bytes | None = None) -> dict[bytes, dict[str, Any]]:
    """The fields of every namespace in the tier by digest, except `than`.

    With these a caller derives the keys that a block would have there, and names the fields that differ.
    """
    found = {}
    for name in tier.notes(_ROOT, timeout_seconds):
        digest, _, what = name.removeprefix(_ROOT).partition("/")
        if what != "fields" or (than is not None and digest == than.hex()):
            continue
        document = tier.read_note(name, timeout_seconds)
        if document is not None:
            found[bytes.fromhex(digest)] = _json(document)
    return found


def relative_errors(
    ours: NDArray[np.floating[Any]], theirs: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """|ours - theirs| / |theirs| (L2) for each index of the leading axis; both of one shape."""
    a = ours.astype(np.float64).reshape(len(ours), -1)
    b = theirs.astype(np.float64).reshape(len(theirs), -1)
    scale = np.linalg.norm(b, axis=1)
    difference = np.linalg.norm(a - b, axis=1)
    # Where theirs is all zero, any difference is infinitely large and none is none.
    return np.where(
        scale > 0, difference / np.where(scale > 0, scale, 1), np.where(difference > 0, np.inf, 0)
    )


def _compare(probe: NDArray[np.float32], written: bytes | None, tolerance: float) -> float | Refused:
    if written is None:
        return Refused("the namespace's probe vanished while it was compared; try again")
    theirs = _decode(written)
    if theirs.shape != probe.shape:
        return Refused(
            f"the namespace's probe has the shape {theirs.shape}, this replica's has {probe.shape}"
        )
    errors = relative_errors(probe, theirs)
    index = int(np.argmax(errors))
    worst = float(errors[index])
    # Written so that a NaN is refused.
    if not worst <= tolerance:
        return Refused(
            f"the KV of the probe differs from the namespace's by {worst:.3g} (relative L2, index {index}), "
            f"more than {tolerance:.3g}: other weights or another computation under the same names",
            worst,
            index,
        )
    return worst


def _encode(probe: NDArray[np.float32]) -> bytes:
    array = np.ascontiguousarray(probe, dtype="<f4")
    return msgspec.msgpack.encode(_Probe("float32", array.shape, array.tobytes()))


def _decode(document: bytes) -> NDArray[np.float32]:
    try:
        probe = msgspec.msgpack.decode(document, type=_Probe)
        if probe.dtype not in _DTYPES:
            raise FormatError(
                f"the namespace's probe is of type {probe.dtype}, not of {' or '.join(_DTYPES)}"
            )
        array = np.frombuffer(probe.data, dtype=np.dtype(probe.dtype).newbyteorder("<"))
        return array.reshape(probe.shape).astype(np.float32)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"the namespace's probe does not parse: {error}; purge the namespace") from error


def _json(document: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(document, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FormatError(f"a namespace note does not parse: {error}; purge the namespace") from error
