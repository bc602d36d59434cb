"""The tier's requests: what vLLM asks and hands over, as the shared cache's arrive, ask, begin and finish.

Runs on the scheduler's thread alone and never waits. vLLM asks block by block; the first block that its own
memory does not hold tells how much it has, and the answer is the same for all blocks of a step. Decisions are
the gate's, states the machine's, bytes the executor's; vLLM's own manager keeps one promotion per block.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    ScheduleEndContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from ....cache.commands import Free, LoadDone, Loaded, ProbeDone, StoreDone
from ....config import RequestFields, parse_request_fields
from ....errors import ConfigError
from ....gate.arms import arm_of, uniform
from ....serving.contract import Controls
from ...cacheside import Compute, EngineLoad, LoadUpTo
from ...ferry import Ferry
from .loads import Loads
from .pace import Pace
from .stores import Stores
from .tracked import GRACE_SECONDS, Common, Tracked, chain_of

__all__ = ["CHUNK_TOKENS", "TierSide"]

log = logging.getLogger("vllm.kvferry")

CHUNK_TOKENS = 8192
"""Tokens of a step as far as prices go: a tier is not told how long the engine's steps may be."""
_ROOM = 1 << 40
"""vLLM makes room for what it is told to bring, or tells that it could not."""


class TierSide:
    """One engine's requests in the shared cache."""

    def __init__(self, common: Common, ferry: Ferry) -> None:
        self._common, self._ferry = common, ferry
        self._requests = common.requests
        self._loads = Loads(common, ferry)
        self._stores = Stores(common)
        self._pace = Pace(ferry.passed)
        self._step = 0
        self._listened_at = -1

    # -- what vLLM's manager calls -----------------------------------------------------------------------

    def arrive(self, context: ReqContext) -> OffloadPolicy:
        """A request; its blocks are not known yet. Whether vLLM should hand down blocks that it held before.

        A prefix that is asked for twice is computed once: under a policy that publishes what was asked for
        before, vLLM has to offer it again.
        """
        config = self._common.config
        why = ""
        try:
            fields = parse_request_fields(context.kv_transfer_params)
        except ConfigError as error:
            # One request's mistake: it is served without the tier.
            fields, why = RequestFields(), str(error)
            log.warning("request %s is served without kvferry: %s", context.req_id, error)
        now = self._common.clock.now()
        self._requests[context.req_id] = Tracked(context.req_id, context, fields, now, over=bool(why))
        again = config.publish == "second-touch" or (
            config.publish == "declared" and fields.boundary_tokens is not None
        )
        return OffloadPolicy.REQUEST_LEVEL if again and not why else OffloadPolicy.CHUNK_LEVEL

    def lookup(self, key: OffloadKey, context: ReqContext) -> LookupResult:
        """Whether to bring this chunk into host memory."""
        tracked = self._requests.get(context.req_id)
        if tracked is None or tracked.over:
            return LookupResult.MISS
        if self._listened_at != self._step:
            self._listened_at = self._step
            self.listen()
        if not tracked.known:
            self._introduce(tracked, get_offload_group_idx(key))
        if tracked.over:
            return LookupResult.MISS
        block = tracked.index.get(key)
        if block is None:
            answer = tracked.answer if tracked.asked_at == self._step else 0
            return self._loads.rider(tracked, key, answer)
        answer = self._answer(tracked, block)
        if isinstance(answer, LookupResult):
            return answer
        return LookupResult.HIT if block < answer else LookupResult.MISS

    def submit_load(self, job: TransferJob) -> None:
        """vLLM has made room for chunks that were hits."""
        self._loads.submit(job)

    def submit_store(self, job: TransferJob) -> None:
        """Chunks lie in host memory, pinned until the job ends."""
        tracked = self._requests.get(job.req_context.req_id)
        if tracked is None:
            self._common.results.append(JobResult(job.job_id, True, transfer_time=0.0, transfer_bytes=0))
            return
        keys = list(job.keys)
        if keys and not tracked.known and not tracked.over:
            self._introduce(tracked, get_offload_group_idx(keys[0]))
            if tracked.known and self._asks(tracked.context):
                # It was never asked about, so the engine holds all of it.
                tracked.covered = len(tracked.hashes)
        self._note_computed(tracked, keys)
        self._stores.submit(job, tracked, self._common.clock.now())

    def finished_jobs(self) -> list[JobResult]:
        """Jobs that have ended since the last call."""
        self.listen()
        return self._fetch()

    def schedule_ended(self, context: ScheduleEndContext) -> None:
        """A step is scheduled, and its promotions were submitted."""
        self.listen()
        for rid in context.preempted_req_ids:
            self._pace.preempted(rid)
            if rid in self._requests:
                self._requests[rid].preempted = True
        decoding = 0
        for tracked in self._requests.values():
            if tracked.scheduled_at >= 0 and not tracked.ready and tracked.whole:
                self._now_ready(tracked)
            decoding += tracked.ready
            if tracked.chosen and not tracked.begun and not tracked.over:
                # vLLM's host memory was full: there is no room for any of it.
                tracked.over = True
                self._ferry.give_up(tracked.rid)
        fresh: dict[str, int] = {}
        for rid in context.new_req_ids:
            known = self._requests.get(rid)
            if known is not None and known.scheduled_at < 0:
                known.scheduled_at = self._step
                if known.known and not known.preempted and not known.whole:
                    fresh[rid] = known.covered * self._common.tokens[known.group]
        self._pace.scheduled(self._common.clock.now(), fresh, decoding)
        self._loads.look_up_riders()
        self._step += 1

    def finish(self, context: ReqContext) -> None:
        """A request is over; no call for it will follow."""
        tracked = self._requests.get(context.req_id)
        if tracked is None:
            return
        self.listen()
        self._loads.end(tracked.rid)
        self._pace.finished(tracked.rid, idle=len(self._requests) <= 1)
        self._settle(tracked)
        self.listen()

    def drain(self) -> None:
        """Wait for what is under way, at most until its deadlines."""
        for _ in range(10_000_000):
            self.listen()
            if not self._loads and not self._stores:
                return
            self._common.clock.sleep(0.002)

    def end_jobs(self) -> list[JobResult]:
        """Take every chunk back now, and say how far each job has come."""
        self._loads.end_all()
        self._stores.end_all()
        return self._fetch()

    def close(self) -> None:
        """The engine stops: nothing touches its memory when this returns."""
        self.end_jobs()
        self._common.memory.release()
        try:
            # vLLM tells of a request's end with the next step, and there may be none.
            for tracked in list(self._requests.values()):
                self._settle(tracked)
        finally:
            self._ferry.close()

    @property
    def jobs(self) -> int:
        """Jobs under way, and results that were not fetched yet."""
        return len(self._loads) + len(self._stores) + len(self._common.results)

    @property
    def requests(self) -> int:
        """Requests that are followed."""
        return len(self._requests)

    @property
    def controls(self) -> Controls:
        """The switches, for whoever may use them while the engine runs."""
        return self._ferry

    @property
    def stores_in_flight(self) -> int:
        """Publications at work now."""
        return self._stores.operations

    # -- inside ------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take up what has ended, and let deadlines pass."""
        own = self._common.executor.own
        while own:
            match own.popleft():
                case ProbeDone(op, status):
                    self._loads.riders_found(op, status)
                case LoadDone(op):
                    self._loads.rider_done(op)
                case StoreDone() as done:
                    self._stores.done(done)
        for news in self._ferry.news():
            if isinstance(news, Loaded):
                tracked = self._requests.get(news.rid)
                if tracked is not None:
                    tracked.over = True
                    tracked.covered = max(tracked.covered, news.end_block)
                self._loads.led(news.rid)
            elif isinstance(news, Free):
                self._loads.led(news.rid)
        now = self._common.clock.now()
        self._loads.tick(now)
        self._stores.tick(now)

    def _fetch(self) -> list[JobResult]:
        results, self._common.results = self._common.results, []
        return results

    def _introduce(self, tracked: Tracked, group: int) -> None:
        """Tell the cache of a request: its chain is known from the first call about one of its chunks."""
        common = self._common
        size = common.tokens.get(group)
        if size is None:
            tracked.over = True
            return
        tracked.group = group
        tracked.hashes = chain_of(tracked.context, group, size)
        # Of the tokens behind the last whole chunk a tier is told nothing; one stands for them.
        tracked.prompt_tokens = len(tracked.hashes) * size + 1
        tracked.data_class = tracked.fields.data_class or common.config.data_class
        settings = common.cache.settings
        # Of the mode that the cache finds it in: the mode may have been switched since the request came.
        tracked.arm = arm_of(
            common.cache.mode,
            uniform(tracked.rid, "arm"),
            canary_share=settings.canary_share,
            holdout_share=settings.holdout_share,
        )
        try:
            self._ferry.arrive(tracked)
        except ValueError:
            log.warning("request %s has the id of one that is not over yet", tracked.rid)
            tracked.over = True
            return
        tracked.known = True
        tracked.index = {key: i for i, key in enumerate(tracked.hashes)}
        space = common.spaces.of(tracked.data_class, None, tracked.hashes)
        tracked.keys, tracked.namespace = space.keys, space.digest
        tracked.publish_end = self._ferry.publishable(tracked.rid)
        tracked.status_by = common.clock.now() + common.config.timeouts.probe + GRACE_SECONDS

    def _answer(self, tracked: Tracked, block: int) -> LookupResult | int:
        """What this step's look-ups are answered; `block` is the first that vLLM does not hold."""
        if tracked.asked_at == self._step:
            return tracked.answer
        tracked.asked_at = self._step
        if tracked.begun:
            tracked.answer = 0
            return 0
        if -1 in tracked.riders.values():
            # A load brings its riders along, or vLLM has no use for it.
            tracked.answer = LookupResult.RETRY
            return tracked.answer
        tracked.covered = max(tracked.covered, block)
        held = block * self._common.tokens[tracked.group]
        match self._ferry.ask(tracked.rid, held, self._load_of(tracked)):
            case LoadUpTo(end_block):
                tracked.chosen, tracked.answer = True, end_block
            case Compute():
                tracked.over, tracked.answer = True, 0
            case _:
                # Also while it waits for a slot: vLLM takes anything but HIT and RETRY for a miss.
                tracked.answer = LookupResult.RETRY
        return tracked.answer

    def _load_of(self, asking: Tracked) -> EngineLoad:
        """How busy the engine is, as far as a tier sees; the asking request not counted."""
        decoding = waiting = ahead = 0
        for other in self._requests.values():
            if other is asking:
                continue
            if other.ready:
                decoding += 1
                continue
            waiting += 1
            if other.known and other.arrived_at <= asking.arrived_at and not self._loads.loading(other.rid):
                ahead += max(0, len(other.hashes) - other.covered) * self._common.tokens[other.group]
        return EngineLoad(decoding, waiting, ahead, _ROOM)

    def _asks(self, context: ReqContext) -> bool:
        """Whether vLLM asks this tier about chunks of the request that it does not hold."""
        return bool(context.load_tier_filter.allows(self._common.medium, self._common.locality))

    def _settle(self, tracked: Tracked) -> None:
        """The request's account is closed and recorded."""
        del self._requests[tracked.rid]
        if not tracked.known:
            return
        if tracked.asked_at < 0:
            # Nothing was decided for it; what the engine held is booked all the same.
            held = tracked.covered * self._common.tokens[tracked.group]
            self._ferry.ask(tracked.rid, held, self._load_of(tracked))
        # A tier is not told how a request ended; one that never ran was aborted.
        self._ferry.finish(tracked.rid, tracked.scheduled_at < 0, None)

    def _now_ready(self, tracked: Tracked) -> None:
        tracked.ready = True
        self._pace.ready(tracked.rid)
        self._ferry.computed(tracked.rid, 0, True, _NOTHING)

    def _note_computed(self, tracked: Tracked, keys: Sequence[bytes]) -> None:
        """Chunks beyond what was held or loaded have been computed, in order."""
        fresh = [tracked.index[key] for key in keys if tracked.index.get(key, -1) >= tracked.covered]
        if fresh:
            tracked.covered = max(fresh) + 1
            self._pace.computed(tracked.rid, tracked.covered * self._common.tokens[tracked.group])


class _Nothing:
    """No memory: a prompt is ready, and what it publishes goes another way."""

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        raise NotImplementedError("nothing is published from here")


_NOTHING = _Nothing()
