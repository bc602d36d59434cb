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
    Free,
)
from ...clock import Clock
from ...config import RequestFields
from ...serving.contract import Controls
from ...store.tier import Kind
from ..cacheside import Adapter, Compute, EngineLoad, LoadUpTo, Pass, Wait
from ..ferry import Ferry
from .auditing import Audits
from .kept import Kept
from .mirror import MirroredTier
from .ordering import BlockIds, OrderingExecutor, Tracked
from .orders import AuditDone, Orders, Report
from .spaces import EngineSpaces

__all__ = ["SchedulerSide"]

log = logging.getLogger(__name__)

_LINGER_SECONDS = 5.0
"""How long an engine without requests goes on to hear of publications."""
_IDLE = EngineLoad(0, 0, 0, 1 << 40)


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
        audits: Audits,
        mirror: MirroredTier | None,
        kept: Kept,
    ) -> None:
        self._ferry = ferry
        self._executor = executor
        self._spaces = spaces
        self._clock = clock
        self._size = block_tokens
        self._loads = loads
        self._kinds = tuple(kinds)
        self._audits = audits
        self._mirror = mirror
        self._kept = kept
        self._windowed = tuple(windowed)
        """Groups that let go of blocks behind a window."""
        self._requests = executor.requests
        self._refusals: list[tuple[str, tuple[int, ...]]] = []
        self._passes: dict[int, _Planned] = {}
        self._step = 0
        self._lively_until = 0.0
        self._pool: Any = None
        self._block_ids: Callable[[str], tuple[list[int], ...]] | None = None

    # -- what vLLM's scheduler calls ---------------------------------------------------------------------

    def bind(self, manager: Any) -> None:
        """The engine's KV cache manager."""
        self._pool = manager.block_pool
        self._kept.bind(self._pool)
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
            self._ferry.arrive(tracked, barred=barred)
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
        if tracked.loading:
            # It has had its load: after a failed one, or a preemption, the engine computes what it lacks.
            return 0
        if tracked.chosen_tokens is not None and tracked.chosen_tokens != local_tokens:
            # The engine's own blocks came or went since: what was chosen no longer fits what it holds.
            self._give_up(tracked)
            return 0
        tracked.local_tokens = local_tokens
        # The engine asks at every step: how busy it is has to be counted only where that decides.
        load = self._load_of(tracked) if self._ferry.decides(tracked.rid) else _IDLE
        answer = self._ferry.ask(tracked.rid, local_tokens, load)
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
        orders = Orders(
            self._step,
            executor.loads,
            executor.stores,
            executor.cancels,
            self._audits.queued,
            self._ferry.link_rate,
            self._refusals,
        )
        executor.loads, executor.stores, executor.cancels = [], [], []
        self._audits.queued, self._refusals = [], []
        return orders

    def reported(self, report: Report | None) -> None:
        """A step has been made, and what has ended on the workers."""
        if report is not None:
            if self._mirror is not None:
                for changes in report.host:
                    self._mirror.apply(changes)
            self._executor.answer([done for done in report.done if not isinstance(done, AuditDone)])
            for done in report.done:
                if isinstance(done, AuditDone):
                    self._audits.done(done)
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
        """A request is over; its blocks are still there.

        The kv_transfer_params of the request that shall decode elsewhere, where this was its prefill.
        """
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return None
        if not tracked.ready and not aborted and request.num_computed_tokens >= tracked.prompt_tokens:
            # Its last step was its first: the report of that step comes after this.
            self._ready(tracked)
        self._release_held(tracked)
        self._lively_until = self._clock.now() + _LINGER_SECONDS
        given = self._ferry.publishable(tracked.rid) * self._size if tracked.ready else 0
        self._ferry.finish(tracked.rid, aborted, tracked.ttft_seconds)
        # Orders for it may still be emitted until the account is settled; from here on none can be.
        del self._requests[tracked.rid]
        self.listen()
        if not tracked.fields.gives or aborted:
            return None
        return {"do_remote_prefill": True, "do_remote_decode": False, "kvferry": {"handoff_tokens": given}}

    @property
    def controls(self) -> Controls:
        """The switches, for whoever may use them while the engine runs."""
        return self._ferry

    @property
    def pending(self) -> bool:
        """Whether the engine has to make steps though no request is left.

        Orders travel with steps, and so do answers: what is published after the last request keeps blocks of
        the engine until then. For a while after that request they are waited for, not for ever.
        """
        if self._executor.waiting or self._audits.queued:
            return True
        return self._kept.keeps("store") and self._clock.now() < self._lively_until

    def sources(self, request: Any) -> dict[Kind, int]:
        """Tokens of its load by kind of tier."""
        tracked = self._requests.get(request.request_id)
        return {self._kinds[tier]: tokens for tier, tokens in tracked.sources.items()} if tracked else {}

    def listen(self) -> None:
        """Take up what has happened, and give back memory that nobody reads any more."""
        for news in self._ferry.news():
            if isinstance(news, Free):
                self._kept.give_back(("store", news.rid))

    def metrics(self) -> bytes:
        """All metrics as text; asks the tiers, so not on the scheduler's thread."""
        return self._ferry.metrics()

    def renew(self) -> bool:
        """Leave all that was stored so far behind: from now on blocks have other names."""
        self._spaces.renew()
        return True

    def broke(self, cause: str) -> None:
        """One of these calls raised. Metrics go on."""
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
        self._kept.keep(("store", tracked.rid), kept)
        memory = BlockIds(tuple(tuple(group) for group in ids or ()))
        if not self._ferry.computed(tracked.rid, usable * self._size, True, memory):
            self._kept.give_back(("store", tracked.rid))
        found = self._ferry.passed_over(tracked.rid)
        if found is not None and self._block_ids is not None:
            ids_now = self._block_ids(tracked.rid)[0]
            block = ids_now[found[1]] if found[1] < len(ids_now) else 0
            self._audits.consider(tracked, found, block, self._pool.blocks[block])
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
            self._kept.keep(("window", tracked.rid), blocks)
            held.update(zip(fresh, blocks, strict=True))

    def _release_held(self, tracked: Tracked) -> None:
        self._kept.give_back(("window", tracked.rid))
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
