"""The scheduler's side of carrying out: look-ups on threads here, loads and stores as orders for workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...cache.commands import (
    Cancel,
    Command,
    Completion,
    Drop,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    Staged,
    Store,
    StoreDone,
)
from ...config import RequestFields
from ...executors.threads import ThreadExecutor
from ..cacheside import Adapter
from .orders import Run, StoreTerms

__all__ = ["BlockIds", "OrderingExecutor", "Tracked"]


@dataclass(frozen=True, slots=True)
class BlockIds:
    """Block memory on the scheduler's side: only its place in the engine's cache.

    `groups[g][i]` is the engine's block for the prompt's block i; 0 where the group has none.
    """

    groups: tuple[tuple[int, ...], ...]

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """There is nothing to see here: workers have the memory."""
        raise NotImplementedError("the scheduler's side has no block memory")

    def run(self, start: int, stop: int) -> tuple[tuple[int, ...], ...]:
        """Of each group, the blocks of `[start, stop)`."""
        return tuple(ids[start:stop] for ids in self.groups)


@dataclass(slots=True)
class Tracked:
    """A request of the engine, as the cache has to know it."""

    rid: str
    hashes: Sequence[bytes]
    prompt_tokens: int
    fields: RequestFields
    adapter: Adapter | None
    arrived: float
    digests: tuple[tuple[bytes, ...], ...] = ()
    computed_tokens: int = 0
    local_tokens: int = 0
    """What the engine said that it holds when it asked last."""
    chosen_tokens: int | None = None
    """And when the load was chosen."""
    loading: bool = False
    ready: bool = False
    """Its prompt has been computed, and offered for publication."""
    ttft_seconds: float | None = None
    held: dict[int, dict[int, Any]] = field(default_factory=dict)
    """For groups that let go of blocks early: block number to the engine's block that is kept."""
    sources: dict[int, int] = field(default_factory=dict)
    """Tokens that loads bring, by tier."""


class OrderingExecutor:
    """Carries out the machine's commands, and knows the requests that they are about.

    `ranks` workers answer each load and store; a look-up speaks for all of them.
    """

    def __init__(self, lookups: ThreadExecutor, deliver: Callable[[Completion], None], ranks: int) -> None:
        self._lookups = lookups
        self._deliver = deliver
        self._ranks = ranks
        self.requests: dict[str, Tracked] = {}
        self.loads: list[Run] = []
        self.stores: list[StoreTerms] = []
        self.cancels: list[int] = []

    @property
    def waiting(self) -> bool:
        """Whether something is ordered that no step has taken along yet."""
        return bool(self.loads or self.stores or self.cancels)

    def submit(self, commands: Sequence[Command]) -> None:
        """Start look-ups; queue the rest for the next step."""
        here: list[Command] = []
        for command in commands:
            match command:
                case Probe() | Drop():
                    here.append(command)
                case Cancel():
                    here.append(command)
                    self.cancels.append(command.op)
                case Load():
                    self.loads.append(self._run(command, command.dest, command.tier))
                case Store():
                    self.stores.append(
                        StoreTerms(
                            self._run(command, command.source, -1),
                            command.lease_seconds,
                            command.ttl_seconds,
                            command.idle_seconds,
                            tuple(command.worth_seconds),
                            command.touched_only,
                            command.keys_only,
                        )
                    )
        if here:
            self._lookups.submit(here)

    def close(self) -> None:
        """End the look-ups; the workers end by themselves."""
        self._lookups.close()

    def heard(self, done: Completion) -> None:
        """A look-up has ended: it speaks for every rank."""
        if isinstance(done, ProbeDone):
            for rank in range(self._ranks):
                self._deliver(msgspec.structs.replace(done, rank=rank))
        else:
            self._deliver(done)

    def answer(self, done: Sequence[LoadDone | StoreDone | Staged]) -> None:
        """What workers have answered."""
        for completion in done:
            self._deliver(completion)

    def _run(self, command: Load | Store, memory: object, tier: int) -> Run:
        request = self.requests[command.rid]
        if not isinstance(memory, BlockIds):
            raise TypeError("blocks are named by their place in the engine's cache")
        return Run(
            command.op,
            command.rid,
            command.start,
            tuple(request.hashes[command.start : command.stop]),
            request.digests,
            memory.run(command.start, command.stop),
            command.timeout_seconds,
            tier,
        )
