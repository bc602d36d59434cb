"""Arrivals are told by tiers that can, and afterwards for those that cannot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvferry.clock import VirtualClock
from kvferry.store.arrival import get_telling
from kvferry.store.backoff import BackedOff
from kvferry.store.bounded import Bounded
from kvferry.store.measured import Measured
from kvferry.store.memory import MemoryTier
from kvferry.store.ratelimited import RateLimited
from kvferry.store.tier import Got, Tier, Vector
from kvferry.store.wrapper import Wrapper

from .conftest import Blocks


class OwnGet(MemoryTier):
    """Overrides `get` alone."""

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        super().get(keys, into, timeout_seconds)
        return bytes([Got.OK, Got.CORRUPT])


class OwnGetOutside(Wrapper):
    """A wrapper that overrides `get` alone."""

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        super().get(keys, into, timeout_seconds)
        return bytes([Got.FAILED, Got.OK])


def told(tier: Tier, blocks: Blocks) -> tuple[bytes, list[int]]:
    keys = [blocks.key(1), blocks.key(2)]
    tier.put(keys[:1], [[blocks.payload(1)]], 10.0)
    heard: list[int] = []
    return get_telling(tier, keys, [[blocks.blank()], [blocks.blank()]], 10.0, heard.append), heard


@pytest.mark.parametrize("wrap", ["none", "rate", "measured", "bounded", "backed off", "plain"])
def test_wrappers_pass_arrivals_on(wrap: str, blocks: Blocks) -> None:
    clock = VirtualClock()
    memory = MemoryTier(1 << 20, clock=clock)
    tiers: dict[str, Tier] = {
        "none": memory,
        "rate": RateLimited(memory, 1e6, clock),
        "measured": Measured(memory, lambda *_: None, clock),
        "bounded": Bounded(memory, 1, clock),
        "backed off": BackedOff(memory, clock),
        "plain": Wrapper(memory),
    }
    assert told(tiers[wrap], blocks) == (bytes([Got.OK, Got.ABSENT]), [0])


def test_a_subclass_that_overrides_get_is_heard(blocks: Blocks) -> None:
    assert told(OwnGet(1 << 20), blocks) == (bytes([Got.OK, Got.CORRUPT]), [0])


def test_a_wrapper_that_overrides_get_is_heard(blocks: Blocks) -> None:
    tier = BackedOff(OwnGetOutside(MemoryTier(1 << 20)), VirtualClock())
    assert told(tier, blocks) == (bytes([Got.FAILED, Got.OK]), [1])


def test_a_patched_get_is_heard(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = MemoryTier(1 << 20)
    monkeypatch.setattr(tier, "get", lambda *_: bytes([Got.OK, Got.OK]))
    assert told(tier, blocks) == (bytes([Got.OK, Got.OK]), [0, 1])
