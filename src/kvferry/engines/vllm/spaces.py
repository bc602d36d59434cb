"""The namespaces of one engine: for each data class one per rank and KV cache group; adapters have more."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ...executors.membership import Membership, Standing
from ...keys.namespace import Namespace
from ...keys.pool import PoolKeys
from ...outcomes import Outcome
from ..cacheside import Adapter
from ..spaces import Space
from .parts import PieceKeys

__all__ = ["EngineSpaces", "member_names"]

Pieces = tuple[tuple[Namespace, ...], ...]
"""Namespaces by rank and group."""


@dataclass(slots=True)
class _Named:
    """One data class with one adapter, or none."""

    digests: tuple[tuple[bytes, ...], ...]
    first: PoolKeys
    """Keys of the piece that stands for the block."""
    others: tuple[PoolKeys, ...]


def member_names(data_class: str, pieces: Pieces) -> dict[str, Namespace]:
    """The pieces of a data class under names for membership; pieces that are alike once."""
    names: dict[str, Namespace] = {}
    seen = set()
    for rank, groups in enumerate(pieces):
        for group, namespace in enumerate(groups):
            digest = namespace.digest()
            if digest not in seen:
                seen.add(digest)
                names[data_class if not rank + group else f"{data_class}/{rank}.{group}"] = namespace
    return names


class EngineSpaces:
    """See `engines.spaces.Spaces`. Pieces that a block has beyond the first are told to `pieces`."""

    def __init__(
        self,
        namespaces: Mapping[str, Pieces],
        data_class: str,
        secret: bytes,
        membership: Membership | None,
        pieces: PieceKeys,
    ) -> None:
        self.data_class = data_class
        self._namespaces = dict(namespaces)
        self._secret = secret
        self._membership = membership
        self._pieces = pieces
        self._named: dict[tuple[str, Adapter | None], _Named] = {}
        self._refused: dict[str, str] = {}
        self._members = {
            name: list(member_names(name, pieces_)) for name, pieces_ in self._namespaces.items()
        }

    def of(self, data_class: str, adapter: Adapter | None, hashes: Sequence[bytes]) -> Space:
        """The space of a request; see `Spaces`."""
        named = self._of(data_class, adapter)
        if named is None:
            why = f"data class {data_class!r} is not in shareable_data_classes"
            return Space(barred=Outcome.NOT_CACHEABLE, why=why)
        digest = named.first.namespace_digest
        if data_class in self._refused:
            return Space((), digest, Outcome.INCOMPATIBLE, f"numerics: {self._refused[data_class]}")
        if self._membership is not None:
            for name in self._members[data_class]:
                member = self._membership.members[name]
                if member.standing is Standing.REFUSED:
                    return Space((), digest, Outcome.INCOMPATIBLE, f"numerics: {member.why}")
                if member.standing is Standing.PENDING:
                    return Space((), digest, Outcome.FAILED, member.why)
        keys = named.first.keys(hashes)
        if named.others:
            self._pieces.remember(keys, [other.keys(hashes) for other in named.others])
        return Space(keys, digest)

    def digests(self, data_class: str, adapter: Adapter | None) -> tuple[tuple[bytes, ...], ...]:
        """The namespace of each group for each rank; empty for a data class that is not shared."""
        named = self._of(data_class, adapter)
        return named.digests if named is not None else ()

    def refuse(self, data_class: str, why: str) -> None:
        """The numbers do not agree, whatever the names say: this replica shares nothing of it any more."""
        self._refused[data_class] = why

    def renew(self) -> None:
        """Name blocks anew. Whoever wants to share again after a change of weights starts again."""
        self._namespaces = {
            name: tuple(
                tuple(
                    msgspec.structs.replace(
                        namespace, weights_revision=f"{namespace.weights_revision}+{secrets.token_hex(8)}"
                    )
                    for namespace in groups
                )
                for groups in pieces
            )
            for name, pieces in self._namespaces.items()
        }
        self._named.clear()
        self._refused.clear()

    def standing(self) -> Mapping[str, Mapping[str, str]]:
        """How each namespace stands with the pool; see `Spaces`."""
        members = self._membership.members if self._membership is not None else {}
        standing = {name: {"standing": m.standing.value, "why": m.why} for name, m in members.items()}
        refused = {name: {"standing": "refused", "why": why} for name, why in self._refused.items()}
        return standing | refused

    def close(self) -> None:
        """Stop joining."""
        if self._membership is not None:
            self._membership.close()

    def _of(self, data_class: str, adapter: Adapter | None) -> _Named | None:
        known = self._named.get((data_class, adapter))
        if known is None and data_class in self._namespaces:
            pieces = self._namespaces[data_class]
            if adapter is not None:
                pieces = tuple(
                    tuple(
                        msgspec.structs.replace(
                            namespace, adapter=adapter.name, adapter_version=adapter.version
                        )
                        for namespace in groups
                    )
                    for groups in pieces
                )
            digests = tuple(tuple(namespace.digest() for namespace in groups) for groups in pieces)
            different = list(dict.fromkeys(digest for groups in digests for digest in groups))
            first, *others = (PoolKeys(digest, self._secret) for digest in different)
            known = self._named[data_class, adapter] = _Named(digests, first, tuple(others))
        return known
