"""Every tier and every wrapper passes the public suite."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from kvferry.clock import Clock, MonotonicClock
from kvferry.store.backoff import BackedOff
from kvferry.store.bounded import Bounded
from kvferry.store.files import FilesTier
from kvferry.store.measured import Measured
from kvferry.store.memory import MemoryTier
from kvferry.store.ratelimited import RateLimited
from kvferry.store.tier import Tier
from kvferry.store.valkey import EmbeddedServer, ValkeyTier
from kvferry.testing.tiers import TierSuite


def memory(
    capacity_bytes: int | None, clock: Clock | None, slot_bytes: int | None = None, policy: str = "lru"
) -> MemoryTier:
    # No test is about the memory of the machine that it runs on.
    return MemoryTier(capacity_bytes or 8 << 20, slot_bytes=slot_bytes, policy=policy, room=None, clock=clock)


class TestMemoryTier(TierSuite):
    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return memory(capacity_bytes, clock)


class TestMemoryTierWithS3FIFO(TierSuite):
    examples = 10

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return memory(capacity_bytes, clock, policy="s3fifo")


class TestMemoryTierWithGDSF(TierSuite):
    examples = 10

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return memory(capacity_bytes, clock, policy="gdsf")


class TestMemoryTierInSmallSlots(TierSuite):
    capacity_enforced = False

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return memory(capacity_bytes, clock, slot_bytes=64)


class TestFilesTier(TierSuite):
    shared = True

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return FilesTier(place, capacity_bytes=capacity_bytes, clock=clock, ghost_keys=1000)


class TestValkeyTier(TierSuite):
    shared = True
    capacity_enforced = False
    obeys_clock = False
    server: ClassVar[EmbeddedServer]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def running_server(cls) -> Iterator[None]:
        with EmbeddedServer(max_memory_bytes=64 << 20) as server:
            cls.server = server
            yield

    @pytest.fixture(autouse=True)
    def empty_server(self) -> None:
        with socket.create_connection((self.server.host, self.server.port), timeout=5) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16) == b"+OK\r\n"

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        server = self.server
        return ValkeyTier(server.host, server.port, prefix=f"{place}:", ghost_keys=1000)


class TestRateLimited(TierSuite):
    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        # Fast enough that the virtual clock does not pass anybody's life.
        return RateLimited(
            TestMemoryTier().open_tier(place, capacity_bytes=capacity_bytes, clock=clock),
            1e9,
            clock or MonotonicClock(),
        )


class TestMeasured(TierSuite):
    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        inner = TestMemoryTier().open_tier(place, capacity_bytes=capacity_bytes, clock=clock)
        return Measured(inner, lambda *_: None, clock or MonotonicClock())


class TestBounded(TierSuite):
    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        inner = TestMemoryTier().open_tier(place, capacity_bytes=capacity_bytes, clock=clock)
        return Bounded(inner, 2, clock or MonotonicClock())


class TestBackedOff(TierSuite):
    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        inner = TestMemoryTier().open_tier(place, capacity_bytes=capacity_bytes, clock=clock)
        return BackedOff(inner, clock or MonotonicClock())
