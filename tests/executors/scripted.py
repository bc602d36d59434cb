"""A real executor over tiers that fail, hang and lie when a test says so."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.cache.commands import Command, Completion, Load, Probe, Store
from kvferry.clock import MonotonicClock
from kvferry.errors import TierTimeout
from kvferry.executors.threads import ThreadExecutor
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Kind, Tier, Vector
from kvferry.store.wrapper import Wrapper

SIZE = 256
NAMESPACE = b"n" * 32
OTHER = b"o" * 32
BOUND_SECONDS = 10.0
"""No answer takes so long; a test that waits for it has failed."""


def memory(kind: Kind = Kind.POOL, blocks: int = 64) -> MemoryTier:
    return MemoryTier(blocks * 1024, kind=kind, name=kind.value)


def key(number: int) -> bytes:
    return bytes([number]) * 32


KEYS = [key(i) for i in range(8)]


def content(number: int) -> bytes:
    return bytes([100 + number]) * SIZE


class Blocks:
    """An engine's memory: `fill` writes what block `i` should hold."""

    def __init__(self, count: int = 8, fill: bool = False) -> None:
        self.data = [bytearray(content(i) if fill else bytes(SIZE)) for i in range(count)]

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        return [memoryview(block) for block in self.data[start:stop]]

    def right(self, start: int, stop: int) -> bool:
        return all(bytes(self.data[i]) == content(i) for i in range(start, stop))


class Scripted(Wrapper):
    """A tier that does what `on` says before, or instead of, each operation.

    `on[operation]` is called with the operation's arguments; what it raises the tier raises, and what it
    returns, unless None, the tier returns.
    """

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier)
        self.on: dict[str, Callable[..., Any]] = {}
        self.calls: list[str] = []
        self.timeouts: list[float] = []

    def _act(self, operation: str, *args: Any) -> Any:
        self.calls.append(operation)
        act = self.on.get(operation)
        return act(*args) if act is not None else None

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        self.timeouts.append(timeout_seconds)
        found = self._act("find", keys, timeout_seconds)
        return self.tier.find(keys, timeout_seconds) if found is None else found

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        got = self._act("get", keys, into, timeout_seconds)
        return self.tier.get(keys, into, timeout_seconds) if got is None else got

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        put = self._act("put", keys, values, timeout_seconds)
        return self.tier.put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds) if put is None else put

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        taken = self._act("lease", names, holder, timeout_seconds)
        return self.tier.lease(names, holder, ttl_seconds, timeout_seconds) if taken is None else taken


class Gate:
    """Holds back a tier's thread until it is opened, or for good measure until the bound."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, *args: Any) -> None:
        self.entered.release()
        self._open.wait(BOUND_SECONDS)

    def wait_until_entered(self) -> None:
        assert self.entered.acquire(timeout=BOUND_SECONDS)

    def open(self) -> None:
        self._open.set()


def timing_out(*args: Any) -> None:
    raise TierTimeout("no answer")


class Bench:
    """An executor and what it has answered."""

    def __init__(self, tiers: Sequence[Tier], **options: Any) -> None:
        self.answers: queue.Queue[Completion] = queue.Queue()
        options = {"clock": MonotonicClock(), "holder": b"replica"} | options
        self.executor = ThreadExecutor(tiers, self.answers.put, **options)
        self._op = 0

    def submit(self, *commands: Command) -> None:
        self.executor.submit(commands)

    def answer(self) -> Any:
        return self.answers.get(timeout=BOUND_SECONDS)

    def run(self, command: Command) -> Any:
        self.submit(command)
        return self.answer()

    def op(self) -> int:
        self._op += 1
        return self._op

    def probe(self, keys: Sequence[bytes] = KEYS, timeout: float = 5.0, **more: Any) -> Probe:
        return Probe(self.op(), "r", keys, more.pop("hashes", None), 0, len(keys), timeout, NAMESPACE, **more)

    def load(self, dest: Blocks, start: int = 0, stop: int = 8, timeout: float = 5.0, tier: int = 0) -> Load:
        return Load(self.op(), "r", tier, KEYS, start, stop, dest, timeout, NAMESPACE)

    def store(self, start: int = 0, stop: int = 8, source: Blocks | None = None, **more: Any) -> Store:
        more = {"timeout_seconds": 5.0, "lease_seconds": 5.0, "namespace": NAMESPACE} | more
        return Store(self.op(), "r", KEYS, start, stop, source or Blocks(fill=True), **more)

    def close(self) -> None:
        self.executor.close()
