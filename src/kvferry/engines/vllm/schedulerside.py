"""The scheduler's half of the connector: the shared cache's machine beside vLLM's scheduler.

Owns the translation of vLLM's calls into the cache's (arrive, ask, begin, computed, finish) and of the
cache's loads and stores into orders for the workers. Decisions are the gate's, states the machine's. Runs on
the scheduler's thread alone, and never waits: look-ups have threads of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...cache.commands import (
    Cancel,
    Command,
    Completion,
    Drop,
    Free,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    Staged,
    Store,
    StoreDone,
)
from ...clock import Clock
from ...config import RequestFields
from ...executors.threads import ThreadExecutor
from ...store.tier import Kind
from ..cacheside import Adapter, Compute, EngineLoad, LoadUpTo, Pass, Wait
from ..ferry import Ferry
from .orders import Orders, Report, Run, StoreTerms
from .spaces import EngineSpaces

__all__ = ["OrderingExecutor", "SchedulerSide"]

log = logging.getLogger(__name__)


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
    """Look-ups on threads here; loads and stores as orders for the workers."""

    def __init__(self, lookups: ThreadExecutor, deliver: Callable[[Completion], None], ranks: int) -> None:
        self._lookups = lookups
        self._deliver = deliver
        self._ranks = ranks
        self.requests: dict[str, Tracked] = {}
        self.loads: list[Run] = []
        self.stores: list[StoreTerms] = []
        self.cancels: list[int] = []

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


class SchedulerSide:
    """One engine's requests in the shared cache."""

    def __init__(
        self,
        *,
        ferry: Ferry,
        executor: OrderingExecutor,
        spaces: EngineSpaces,
        clock: Clock,
        block_tokens: int,
        loads: bool,
        windowed: Sequence[int],
        kinds: Sequence[Kind],
    ) -> None:
        self._ferry = ferry
        self._executor = executor
        self._spaces = spaces
        self._clock = clock
        self._size = block_tokens
        self._loads = loads
        self._kinds = tuple(kinds)
        self._windowed = tuple(windowed)
        """Groups that let go of blocks behind a window."""
        self._requests = executor.requests
        self._lent: dict[str, list[Any]] = {}
        self._refusals: list[tuple[str, tuple[int, ...]]] = []
        self._passes: dict[int, _Planned] = {}
        self._step = 0
        self._pool: Any = None
        self._block_ids: Callable[[str], tuple[list[int], ...]] | None = None

    # -- what vLLM's scheduler calls ---------------------------------------------------------------------

    def bind(self, manager: Any) -> None:
        """The engine's KV cache manager."""
        self._pool = manager.block_pool
        self._block_ids = manager.get_block_ids

    def arrive(
        self, request: Any, fields: RequestFields, adapter: Adapter | None, *, barred: str = ""
    ) -> None:
        """A new request; `barred` is why the cache must not be used for it."""
        rid = request.request_id
        size = self._size
        tokens = int(request.num_prompt_tokens)
        hashes = () if barred else tuple(request.block_hashes[: tokens // size])
        if not self._loads:
            fields = msgspec.structs.replace(fields, max_load_tokens=0)
        tracked = Tracked(rid, hashes, tokens, fields, adapter, self._clock.now())
        data_class = fields.data_class or self._spaces.data_class
        tracked.digests = self._spaces.digests(data_class, adapter)
        self._requests[rid] = tracked
        try:
            self._ferry.arrive(tracked)
        except ValueError:
            # The id of a request whose publication is still under way: this one goes without the cache.
            log.warning("request %s has the id of one that is not over yet", rid)
            del self._requests[rid]

    def matched(self, request: Any, local_tokens: int) -> int | None:
        """Tokens beyond `local_tokens` to load; None to be asked again."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return 0
        self.listen()
        if tracked.chosen_tokens is not None and tracked.chosen_tokens != local_tokens:
            # The engine's own blocks came or went since: what was chosen no longer fits what it holds.
            self._give_up(tracked)
            return 0
        tracked.local_tokens = local_tokens
        answer = self._ferry.ask(tracked.rid, local_tokens, self._load_of(tracked))
        match answer:
            case Wait():
                return None
            case LoadUpTo(end_block):
                tokens = min(end_block * self._size, tracked.prompt_tokens - 1) - local_tokens
                if tokens <= 0 or tokens % self._size:
                    tracked.chosen_tokens = local_tokens
                    self._give_up(tracked)
                    return 0
                tracked.chosen_tokens = local_tokens
                return tokens
            case Compute():
                return 0
        return 0

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
        """Memory exists for `tokens` that are to be loaded; 0 when the engine wants none."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.loading or tracked.chosen_tokens is None:
            return
        if tokens <= 0:
            self._give_up(tracked)
            return
        tracked.loading = True
        end = (tracked.chosen_tokens + tokens) // self._size
        before = len(self._executor.loads)
        memory = BlockIds(tuple(tuple(ids) for ids in block_ids))
        self._ferry.begin(tracked.rid, end, memory)
        runs = self._executor.loads[before:]
        for run in runs:
            tracked.sources[run.tier] = tracked.sources.get(run.tier, 0) + len(run.hashes) * self._size
        if not runs:
            # Its time ran out meanwhile: the engine waits for a load that will not begin.
            start = tracked.chosen_tokens // self._size
            self._refusals.append((tracked.rid, tuple(i for i in memory.groups[0][start:end] if i)))

    def planned(self, output: Any) -> Orders:
        """A step has been scheduled: its orders."""
        self.listen()
        self._step += 1
        plan = _Planned(self._clock.now())
        contexts = _contexts(output)
        for rid, count in output.num_scheduled_tokens.items():
            tracked = self._requests.get(rid)
            context = contexts.get(rid, 0)
            if tracked is None or context >= tracked.prompt_tokens:
                plan.decodes += 1
                continue
            computed = min(count, tracked.prompt_tokens - context)
            plan.prefills.append((rid, computed, context))
            tracked.computed_tokens = context + computed
            if self._windowed:
                self._hold(tracked)
            if context + count >= tracked.prompt_tokens and not tracked.ready:
                plan.ready.append(rid)
        if output.num_scheduled_tokens:
            self._passes[self._step] = plan
        executor = self._executor
        orders = Orders(self._step, executor.loads, executor.stores, executor.cancels, self._refusals)
        executor.loads, executor.stores, executor.cancels, self._refusals = [], [], [], []
        return orders

    def reported(self, report: Report | None) -> None:
        """A step has been made, and what has ended on the workers."""
        if report is not None:
            self._executor.answer(report.done)
            plan = self._passes.pop(report.step, None)
            if plan is not None:
                seconds = report.seconds or self._clock.now() - plan.at
                self._ferry.passed(Pass(seconds, plan.prefills, plan.decodes))
                for rid in plan.ready:
                    tracked = self._requests.get(rid)
                    if tracked is not None:
                        self._ready(tracked)
        self.listen()

    def finished(self, request: Any, *, aborted: bool) -> dict[str, Any] | None:
        """A request is over; its blocks are still there. Its decision record."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return None
        if not tracked.ready and not aborted and request.num_computed_tokens >= tracked.prompt_tokens:
            # Its last step was its first: the report of that step comes after this.
            self._ready(tracked)
        self._release_held(tracked)
        record = self._ferry.finish(tracked.rid, aborted, tracked.ttft_seconds)
        # Orders for it may still be emitted until the account is settled; from here on none can be.
        del self._requests[tracked.rid]
        self.listen()
        return record

    def sources(self, request: Any) -> dict[Kind, int]:
        """Tokens of its load by kind of tier."""
        tracked = self._requests.get(request.request_id)
        return {self._kinds[tier]: tokens for tier, tokens in tracked.sources.items()} if tracked else {}

    def unsent(self) -> list[tuple[str, tuple[int, ...]]]:
        """Requests whose loads were begun and not ordered yet, and the blocks of these."""
        runs = [
            (run.rid, tuple(block for block in run.block_ids[0] if block)) for run in self._executor.loads
        ]
        return runs + self._refusals

    def listen(self) -> None:
        """Take up what has happened, and give back memory that nobody reads any more."""
        for news in self._ferry.news():
            if isinstance(news, Free):
                blocks = self._lent.pop(news.rid, None)
                if blocks:
                    self._pool.free_blocks(reversed(blocks))

    def metrics(self) -> bytes:
        """All metrics as text; asks the tiers, so not on the scheduler's thread."""
        return self._ferry.metrics()

    def broke(self, cause: str) -> None:
        """One of these calls raised: metrics go on, and blocks that may still be read are never given back."""
        self._ferry.broke(cause)
        try:
            self._ferry.close()
        except Exception:
            log.exception("the failed cache could not be closed")

    def close(self) -> None:
        """The engine stops."""
        self._ferry.close()

    # -- inside ------------------------------------------------------------------------------------------

    def _give_up(self, tracked: Tracked) -> None:
        tracked.chosen_tokens = None
        self._ferry.give_up(tracked.rid)

    def _load_of(self, asking: Tracked) -> EngineLoad:
        """How busy the engine is, the asking request not counted."""
        decoding = waiting = ahead = 0
        for other in self._requests.values():
            if other is asking:
                continue
            if other.ready:
                decoding += 1
                continue
            waiting += 1
            if other.arrived <= asking.arrived and not other.loading:
                ahead += max(0, other.prompt_tokens - max(other.computed_tokens, other.local_tokens))
        free = self._pool.get_num_free_blocks() if self._pool is not None else 1 << 40
        return EngineLoad(decoding, waiting, ahead, free)

    def _ready(self, tracked: Tracked) -> None:
        """The prompt's KV is whole: publish what is worth it, from blocks that are kept meanwhile."""
        tracked.ready = True
        tracked.ttft_seconds = self._clock.now() - tracked.arrived
        blocks = min(tracked.prompt_tokens // self._size, self._ferry.publishable(tracked.rid))
        ids = self._ids(tracked, blocks)
        usable = 0
        if ids is not None:
            usable = next((i for i in range(blocks) if not all(group[i] for group in ids)), blocks)
        kept = [self._pool.blocks[group[i]] for group in ids or () for i in range(usable)]
        if kept:
            self._pool.touch(kept)
        memory = BlockIds(tuple(tuple(group) for group in ids or ()))
        lent = self._ferry.computed(tracked.rid, usable * self._size, True, memory)
        if lent:
            self._lent.setdefault(tracked.rid, []).extend(kept)
        elif kept:
            self._pool.free_blocks(reversed(kept))
        self._release_held(tracked)

    def _ids(self, tracked: Tracked, blocks: int) -> list[list[int]] | None:
        """The engine's block for each of the prompt's blocks, by group."""
        if self._block_ids is None or not blocks:
            return None
        groups = [list(ids[:blocks]) for ids in self._block_ids(tracked.rid)]
        for group, held in tracked.held.items():
            for i, block in held.items():
                if i < blocks and not groups[group][i]:
                    groups[group][i] = block.block_id
        return groups if all(len(ids) == blocks for ids in groups) else None

    def _hold(self, tracked: Tracked) -> None:
        """Keep a window's blocks until they can be published: the engine would let go of them in prefill."""
        if self._block_ids is None or self._ferry.publishable(tracked.rid) == 0:
            return
        if self._pool.get_num_free_blocks() < self._pool.num_gpu_blocks // 4:
            # Memory for requests comes first: this one is not published.
            self._release_held(tracked)
            return
        end = min(tracked.computed_tokens, tracked.prompt_tokens) // self._size
        ids = self._block_ids(tracked.rid)
        for group in self._windowed:
            held = tracked.held.setdefault(group, {})
            fresh = [i for i, block in enumerate(ids[group][:end]) if block and i not in held]
            blocks = [self._pool.blocks[ids[group][i]] for i in fresh]
            self._pool.touch(blocks)
            held.update(zip(fresh, blocks, strict=True))

    def _release_held(self, tracked: Tracked) -> None:
        for held in tracked.held.values():
            self._pool.free_blocks(reversed(list(held.values())))
        tracked.held = {}


@dataclass(slots=True)
class _Planned:
    """What a step was to do."""

    at: float
    prefills: list[tuple[str, int, int]] = field(default_factory=list)
    decodes: int = 0
    ready: list[str] = field(default_factory=list)
    """Requests whose prompt it completes."""


def _contexts(output: Any) -> dict[str, int]:
    """Tokens that each scheduled request had before the step."""
    contexts = {new.req_id: int(new.num_computed_tokens) for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    contexts.update(zip(cached.req_ids, map(int, cached.num_computed_tokens), strict=True))
    return contexts
