"""Which namespace a request's blocks belong to, and whether this replica may use it now.

Owns the step from a request's data class and adapter to keys, digest and standing. Refuses to know how a
namespace is joined (`executors/membership`) and what is done with the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..executors.membership import Membership, Standing
from ..keys.namespace import Namespace
from ..keys.pool import PoolKeys
from ..outcomes import Outcome
from .cacheside import Adapter

__all__ = ["NamedSpaces", "Space", "Spaces"]


@dataclass(frozen=True, slots=True)
class Space:
    """The blocks that a request may share."""

    keys: Sequence[bytes] = ()
    """Pool keys of the blocks asked about; empty where the cache must not be used."""
    digest: bytes = b""
    barred: Outcome | None = None
    """The cause under which the blocks are booked when the cache must not be used."""
    why: str = ""


class Spaces(Protocol):
    """The namespaces of one replica."""

    def of(self, data_class: str, adapter: Adapter | None, hashes: Sequence[bytes]) -> Space:
        """The space of a request with these block hashes."""

    def standing(self) -> Mapping[str, Mapping[str, str]]:
        """Of each namespace: how it stands with the pool, and why, for the operator."""

    def close(self) -> None:
        """Stop joining."""


class NamedSpaces:
    """Namespaces by data class; an adapter has one of its own beside the model's.

    Without `membership` there is no pool to agree with: what this replica stores, it may read. An adapter
    stands as its model does, since its name and version say what the base's probe cannot.
    """

    def __init__(
        self, namespaces: Mapping[str, Namespace], secret: bytes, membership: Membership | None
    ) -> None:
        self._namespaces = dict(namespaces)
        self._secret = secret
        self._membership = membership
        self._keys: dict[tuple[str, Adapter | None], PoolKeys] = {}

    def of(self, data_class: str, adapter: Adapter | None, hashes: Sequence[bytes]) -> Space:
        """See `Spaces`."""
        keys = self.keys_of(data_class, adapter)
        if keys is None:
            why = f"data class {data_class!r} is not in shareable_data_classes"
            return Space(barred=Outcome.NOT_CACHEABLE, why=why)
        digest = keys.namespace_digest
        if self._membership is not None:
            member = self._membership.members[data_class]
            if member.standing is Standing.REFUSED:
                return Space((), digest, Outcome.INCOMPATIBLE, f"numerics: {member.why}")
            if member.standing is Standing.PENDING:
                return Space((), digest, Outcome.FAILED, member.why)
        return Space(keys.keys(hashes), digest)

    def keys_of(self, data_class: str, adapter: Adapter | None) -> PoolKeys | None:
        """The keys of a namespace; None for a data class that is not shared."""
        known = self._keys.get((data_class, adapter))
        if known is None:
            namespace = self._namespaces.get(data_class)
            if namespace is None:
                return None
            if adapter is not None:
                namespace = msgspec.structs.replace(
                    namespace, adapter=adapter.name, adapter_version=adapter.version
                )
            known = self._keys[data_class, adapter] = PoolKeys(namespace.digest(), self._secret)
        return known

    def standing(self) -> Mapping[str, Mapping[str, str]]:
        """See `Spaces`."""
        members = self._membership.members if self._membership is not None else {}
        return {name: {"standing": m.standing.value, "why": m.why} for name, m in members.items()}

    def close(self) -> None:
        """See `Spaces`."""
        if self._membership is not None:
            self._membership.close()
