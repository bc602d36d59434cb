"""What a publisher knows of a batch that its keys do not say: how much a block saves, and what it continues.

Owns an optional ability of a tier: `put` with one more keyword, `hints`. The contract stays as it is: a tier
without the keyword (a plug-in, a server that evicts by rules of its own) is asked without. Wrappers pass the
hints on, and cut them where they cut a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeGuard

import msgspec

from .tier import Tier, Vector

__all__ = ["Hints", "TakesHints", "put_hinted"]


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """Of the keys of one `put`. Hints are advice: no tier stores less because of them."""

    worth_seconds: Sequence[float] | None = None
    """For each key, the prefill seconds that reading it saves; a policy may keep by it."""
    after: bytes | None = None
    """The key just before the batch's first one in its chain; None at the head of a chain."""
    idle_seconds: float | None = None
    """Drop a block that nobody has read for this long (`store/lifetime.py` follows what is usual)."""

    def part(self, keys: Sequence[bytes], start: int, stop: int) -> Hints:
        """The hints of `keys[start:stop]`, where these are the hints of `keys`."""
        return Hints(
            worth_seconds=None if self.worth_seconds is None else self.worth_seconds[start:stop],
            after=keys[start - 1] if start else self.after,
            idle_seconds=self.idle_seconds,
        )


class TakesHints(Protocol):
    """A tier whose `put` knows the keyword."""

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        """As `Tier.put`."""


def put_hinted(
    tier: Tier,
    keys: Sequence[bytes],
    values: Sequence[Vector],
    timeout_seconds: float,
    *,
    ttl_seconds: float | None = None,
    hints: Hints | None = None,
) -> bytes:
    """Write through the tier's `put`, with the hints where it takes them."""
    if hints is not None and _takes(tier):
        return tier.put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
    return tier.put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds)


def _takes(tier: Tier) -> TypeGuard[TakesHints]:
    return _class_takes(type(tier))


@cache
def _class_takes(kind: type) -> bool:
    return "hints" in inspect.signature(kind.put).parameters  # type: ignore[attr-defined]
