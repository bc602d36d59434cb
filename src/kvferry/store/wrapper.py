"""A tier around a tier that changes nothing: the base of the wrappers.

Owns the forwarding, so that each wrapper shows only what it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .arrival import Arrived, get_telling
from .hints import Hints, put_hinted
from .tier import Entry, Kind, Tier, Usage, Vector

__all__ = ["Wrapper"]


class Wrapper:
    """Forwards every call to `tier`. A wrapper that changes reading overrides `get_telling`, not `get`."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    @property
    def name(self) -> str:
        return self.tier.name

    @property
    def kind(self) -> Kind:
        return self.tier.kind

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        return self.tier.find(keys, timeout_seconds)

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        return self.get_telling(keys, into, timeout_seconds, _unheard)

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        return get_telling(self.tier, keys, into, timeout_seconds, arrived)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        return put_hinted(self.tier, keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        return self.tier.drop(keys, timeout_seconds, ghost=ghost)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        return self.tier.lease(names, holder, ttl_seconds, timeout_seconds)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        self.tier.release(names, holder, timeout_seconds)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        return self.tier.read_note(name, timeout_seconds)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        return self.tier.write_note(name, value, timeout_seconds, if_absent=if_absent)

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        return self.tier.notes(prefix, timeout_seconds)

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        return self.tier.scan(timeout_seconds)

    def usage(self, timeout_seconds: float) -> Usage:
        return self.tier.usage(timeout_seconds)

    def close(self) -> None:
        self.tier.close()


def _unheard(index: int) -> None:
    """For readers that wait for the whole batch."""
