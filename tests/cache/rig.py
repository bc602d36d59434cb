"""A cache machine whose executor and engine are played by the test, one move at a time."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from kvferry.cache.account import Account
from kvferry.cache.commands import (
    Cancel,
    Command,
    Drop,
    Free,
    Legs,
    Load,
    LoadDone,
    Loaded,
    News,
    Probe,
    ProbeDone,
    Staged,
    Status,
    Store,
    StoreDone,
)
from kvferry.cache.machine import Cache
from kvferry.cache.requests import Answer, LoadTo
from kvferry.cache.settings import CacheSettings
from kvferry.cache.settle import Ending
from kvferry.gate.publication import Publication
from kvferry.outcomes import Outcome

BLOCK = 16
BYTES_PER_TOKEN = 1000
BLOCK_BYTES = BLOCK * BYTES_PER_TOKEN
HOST, POOL = Status.TIER, Status.TIER + 1
NOBODY = ""


class Memory:
    """Block memory that nobody looks into."""

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        return [memoryview(b"")] * (stop - start)


def chain(blocks: int, name: str = "p") -> list[bytes]:
    """Keys of a prompt's blocks; equal names share a prefix."""
    return [blake2b(f"{name}/{i}".encode(), digest_size=32).digest() for i in range(blocks)]


def settings(**changes: Any) -> CacheSettings:
    """Two tiers, nobody held out, nothing explored, no slow start: a test changes what it is about."""
    base: dict[str, Any] = {
        "block_tokens": BLOCK,
        "bytes_per_token": BYTES_PER_TOKEN,
        "tiers": (Outcome.HOST_HIT, Outcome.POOL_HIT),
        "holdout_share": 0.0,
        "explore_share": 0.0,
        "new_replica_loads": 4,
    }
    return CacheSettings(**(base | changes))


def learn(cache: Cache, token_seconds: float = 0.001, bytes_per_second: float = 16e7) -> None:
    """A block takes 16 ms to compute and 0.1 ms to load: loading pays."""
    for _ in range(30):
        for tokens, context in ((64, 0), (256, 0), (256, 2048), (512, 1024)):
            cache.estimates.prefill_step(
                tokens, context, tokens * token_seconds * (1 + (context + tokens / 2) / 1e5)
            )
        for leg in cache.estimates.legs:
            for size in (100_000, 400_000, 1_600_000):
                leg.observe(size, 0.0005 + size / bytes_per_second)


class Rig:
    """A machine, the time, and everything it has said so far."""

    def __init__(self, publication: str = "all", *, learned: bool = True, **changes: Any) -> None:
        self.cache = Cache(settings(**changes), Publication(publication, ["default"]))
        if learned:
            learn(self.cache)
        self.now = 100.0
        self.sent: list[Command] = []
        self.news: list[News] = []

    def fetch(self) -> list[Command]:
        """Commands since the last call; they are kept in `sent`, and news in `news`."""
        commands = self.cache.take()
        self.sent += commands
        self.news += self.cache.take_news()
        return commands

    def arrive(self, rid: str, keys: Sequence[bytes], tokens: int | None = None, **more: Any) -> Probe:
        """A prompt of these blocks and five tokens more, unless said otherwise; its probe."""
        prompt = len(keys) * BLOCK + 5 if tokens is None else tokens
        self.cache.arrive(self.now, rid, keys, prompt, **more)
        (probe,) = [c for c in self.fetch() if isinstance(c, Probe)]
        return probe

    def probed(self, probe: Probe, status: bytes, rank: int = 0) -> None:
        self.cache.receive(self.now, ProbeDone(probe.op, status, 0.001, rank=rank))
        self.fetch()

    def known(self, rid: str, keys: Sequence[bytes], status: bytes, **more: Any) -> None:
        self.probed(self.arrive(rid, keys, **more), status)

    def ask(self, rid: str, local_tokens: int = 0, **more: Any) -> Answer:
        return self.cache.ask(self.now, rid, local_tokens, **({"chunk_tokens": 2048} | more))

    def begin(self, rid: str, end_block: int) -> list[Load]:
        self.cache.begin(self.now, rid, end_block, Memory())
        return [c for c in self.fetch() if isinstance(c, Load)]

    def loading(self, rid: str, keys: Sequence[bytes], status: bytes, **more: Any) -> list[Load]:
        """A request whose load has begun."""
        self.known(rid, keys, status, **more)
        answer = self.ask(rid)
        assert isinstance(answer, LoadTo), answer
        return self.begin(rid, answer.end_block)

    def load_done(
        self, load: Load, good: int | None = None, cause: Outcome | None = None, rank: int = 0
    ) -> None:
        good = load.stop - load.start if good is None else good
        legs = Legs(0.0, 0.001, 0.0, good * BLOCK_BYTES)
        self.cache.receive(self.now, LoadDone(load.op, good, cause, legs, rank))
        self.fetch()

    def computed(self, rid: str, tokens: int, clean: bool = True) -> list[Store]:
        self.lent = self.cache.computed(self.now, rid, tokens, clean=clean, source=Memory())
        return [c for c in self.fetch() if isinstance(c, Store)]

    def store_done(self, store: Store, rank: int = 0) -> None:
        blocks = store.stop - store.start
        legs = Legs(0.0, 0.001, 0.0, blocks * BLOCK_BYTES)
        self.cache.receive(self.now, StoreDone(store.op, blocks, blocks * BLOCK_BYTES, legs=legs, rank=rank))
        self.fetch()

    def staged(self, store: Store, rank: int = 0) -> None:
        self.cache.receive(self.now, Staged(store.op, rank))
        self.fetch()

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.cache.tick(self.now)
        self.fetch()

    def finish(self, rid: str, *, aborted: bool = False, computed: int = 0, took: float = 0.0) -> Account:
        account = self.cache.finish(self.now, rid, Ending(aborted, computed, took))
        self.fetch()
        return account

    def of(self, kind: type[Any]) -> list[Any]:
        """Everything of one kind that was said, commands and news."""
        return [x for x in (*self.sent, *self.news) if isinstance(x, kind)]

    @property
    def drops(self) -> list[Drop]:
        return self.of(Drop)

    @property
    def cancels(self) -> list[Cancel]:
        return self.of(Cancel)

    @property
    def loaded(self) -> list[Loaded]:
        return self.of(Loaded)

    @property
    def freed(self) -> list[str]:
        return [free.rid for free in self.of(Free)]

    def drain(self) -> None:
        """Let time pass with an executor that never answers again, until nothing is left to wait for."""
        for _ in range(10_000):
            deadline = self.cache.next_deadline()
            if deadline is None:
                return
            self.now = max(self.now, deadline)
            self.tick()
        raise AssertionError("deadlines never end")
