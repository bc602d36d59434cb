"""The cache's commands in terms of vLLM's host chunks, carried out by the executor's threads.

A load covers those of its blocks for which vLLM made room; it holds the others itself. Stores, and look-ups
of other KV cache groups, are the tier's own operations: their numbers are negative, and their answers wait
to be fetched. Owns that translation, and decides nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ....cache.commands import (
    BlockMemory,
    Command,
    Completion,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    Store,
    StoreDone,
)
from ....executors.threads import ThreadExecutor
from .chunks import Chunks, ChunkStaging, LoadChunks

__all__ = ["ChunkExecutor", "Incoming", "LoadPlace", "OwnDone"]

OwnDone = ProbeDone | LoadDone | StoreDone


@dataclass(frozen=True, slots=True)
class LoadPlace:
    """Where a load goes: block numbers of the prompt, and their places among a job's chunks."""

    chunks: Chunks
    places: Mapping[int, int]

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Nothing reads through this: each command gets the chunks that it is to fill."""
        raise NotImplementedError("chunks are lent by their place in a job")


class Incoming(Protocol):
    """What the executor needs to know of a request."""

    status: bytes | None
    """What the look-up said of each block; set when it has been answered."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A load on its way: which blocks are read, of `[start, stop)`."""

    start: int
    stop: int
    blocks: tuple[int, ...]


class ChunkExecutor:
    """An `Executor`. Answers may come on any thread."""

    def __init__(
        self,
        threads: Callable[[Callable[[Completion], None]], ThreadExecutor],
        deliver: Callable[[Completion], None],
        requests: Mapping[str, Incoming],
        staging: ChunkStaging,
    ) -> None:
        self._deliver = deliver
        self._requests = requests
        self._staging = staging
        self._lock = threading.Lock()
        self._runs: dict[int, _Run] = {}
        self._probes: dict[int, Incoming] = {}
        self._last = 0
        self.own: deque[OwnDone] = deque()
        """Answers to the tier's own operations."""
        self._threads = threads(self._heard)

    def next_op(self) -> int:
        """A number that no other operation has."""
        self._last -= 1
        return self._last

    def submit(self, commands: Sequence[Command]) -> None:
        """Start these commands; returns at once."""
        for command in commands:
            match command:
                case Probe(op, rid) if op > 0:
                    with self._lock:
                        # Also one that is over meanwhile: its chunks may wait to be published.
                        self._probes[op] = self._requests[rid]
                    hashes = None if command.hashes is None else [bytes(h[:-4]) for h in command.hashes]
                    self._threads.submit([msgspec.structs.replace(command, hashes=hashes)])
                case Load(op) if op > 0:
                    self._load(command)
                case Store(op) if op > 0:
                    raise TypeError("stores of a tier are its own operations")
                case _:
                    self._threads.submit([command])

    def close(self) -> None:
        """Answer for what is in flight, and end."""
        self._threads.close()

    def _load(self, command: Load) -> None:
        dest: BlockMemory = command.dest
        if not isinstance(dest, LoadPlace):
            raise TypeError("a load goes to chunks of a job")
        blocks = tuple(b for b in range(command.start, command.stop) if b in dest.places)
        with self._lock:
            self._runs[command.op] = _Run(command.start, command.stop, blocks)
        if not blocks:
            self._heard(LoadDone(command.op, 0))
            return
        into = LoadChunks(dest.chunks, [dest.places[b] for b in blocks], self._staging)
        keys = [command.keys[b] for b in blocks]
        self._threads.submit(
            [msgspec.structs.replace(command, keys=keys, start=0, stop=len(keys), dest=into)]
        )

    def _heard(self, done: Completion) -> None:
        op = getattr(done, "op", 0)
        if op < 0 and isinstance(done, ProbeDone | LoadDone | StoreDone):
            self.own.append(done)
            if isinstance(done, ProbeDone):
                return
            # The ferry counts bytes and failures; its machine does not know the number and leaves it.
        elif isinstance(done, LoadDone):
            with self._lock:
                run = self._runs.pop(op, None)
            if run is not None:
                whole = done.good >= len(run.blocks)
                good = (run.stop if whole else run.blocks[done.good]) - run.start
                done = msgspec.structs.replace(done, good=good, cause=None if whole else done.cause)
        elif isinstance(done, ProbeDone):
            with self._lock:
                request = self._probes.pop(op, None)
            if request is not None:
                request.status = done.status
        self._deliver(done)
