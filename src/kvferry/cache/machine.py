"""The cache machine: lookups and completions in, commands and news out.

The life of a request: `arrive` emits a probe; `ask` is polled and answers wait, load or compute; `begin`
is called once memory exists and emits one load per tier segment; `Loaded` tells how far the blocks are
usable; `computed` may emit stores; `finish` settles the account. Deciding is apart from making memory, and
the deadline is apart from the release of memory: what is past its deadline is not waited for, but memory
is free only when every rank has said that nothing will be written to it any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..gate.arms import arm_of, uniform
from ..gate.budget import LoadBudget
from ..gate.decide import decide, recompute_seconds
from ..gate.facts import Arm, Decision, Facts, Live, Reason
from ..gate.publication import Publication
from ..gate.trial import Trial
from ..outcomes import Outcome
from ..store.lifetime import Lifetimes, Reuses
from .account import Account, LoadedRun
from .commands import (
    TIER,
    Again,
    BlockMemory,
    Command,
    Completion,
    Drop,
    Evicted,
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
from .estimates import Estimates
from .flights import Flights
from .operations import Operation, Operations
from .publishing import Publishing
from .requests import CHOSEN, KNOWN, LOADING, PROBING, SETTLED, Answer, Compute, LoadTo, Request, Wait
from .settings import CacheSettings
from .settle import Ending, settle

__all__ = ["Cache"]

_WAIT, _COMPUTE = Wait(), Compute()
_NEVER = float("inf")
_FAILED = int(Status.FAILED)
_PROBE_SHARE = 0.05
"""Of the predicted prefill, what a look-up may take where that is more than its own limit."""
_ASK_AGAIN_SECONDS = 0.005
"""Between two look-ups for blocks that are being handed over."""
_ON, _OFF = Arm.ON, Arm.OFF


class Cache:
    """One engine's view of the shared cache. Not thread-safe: one owner calls everything."""

    def __init__(self, settings: CacheSettings, publication: Publication) -> None:
        self.settings = settings
        self.mode = settings.mode
        self.terms = settings.terms
        self.estimates = Estimates(len(settings.tiers))
        self.trial = Trial()
        self.lifetimes = Lifetimes()
        self._reuses = Reuses(self.lifetimes)
        self.flights = Flights(
            LoadBudget(
                start=settings.new_replica_loads,
                most=settings.replica_loads,
                growth=settings.growth_per_load,
            )
        )
        self.evicted_unread_blocks = 0
        self.evicted_read_blocks = 0
        self._publication = publication
        self._publishing = Publishing(settings.replica_stores)
        self._requests: dict[str, Request] = {}
        self._operations = Operations(
            ranks=settings.ranks,
            grace_seconds=settings.grace_seconds,
            abandon_seconds=settings.abandon_seconds,
        )
        self._news: list[News] = []
        self._due_at = _NEVER

    # -- what the engine calls -------------------------------------------------------------------------

    def arrive(
        self,
        now: float,
        rid: str,
        keys: Sequence[bytes],
        tokens: int,
        *,
        hashes: Sequence[bytes] | None = None,
        namespace: bytes = b"",
        boundary_tokens: int | None = None,
        data_class: str = "default",
        max_load_tokens: int | None = None,
        deadline_seconds: float | None = None,
        handoff_tokens: int | None = None,
        gives: bool = False,
        barred: Outcome | None = None,
        barred_why: str = "",
    ) -> None:
        """A request with the pool keys of its full blocks. Emits a probe unless the cache is off for it.

        `barred` is the cause that its blocks are booked under when the cache must not be used for it (a
        data class that is not shared, a namespace that is not this replica's), and `barred_why` says so
        in words. `handoff_tokens` were computed for this request by another replica, which publishes them;
        `gives` is that other side: what may be published is, popular or not. Raises ValueError for a request
        id still in use: two lives must not share an account.
        """
        if rid in self._requests:
            raise ValueError(f"request {rid!r} is still in the cache")
        settings = self.settings
        arm = arm_of(
            self.mode,
            uniform(rid, "arm"),
            canary_share=settings.canary_share,
            holdout_share=settings.holdout_share,
        )
        request = self._requests[rid] = Request(
            rid=rid,
            arrived=now,
            arm=arm,
            keys=keys,
            namespace=namespace,
            data_class=data_class,
            tokens=tokens,
            explore=arm is _ON and uniform(rid, "explore") < settings.explore_share,
            max_load_tokens=max_load_tokens,
            deadline=None if deadline_seconds is None else now + deadline_seconds,
        )
        if handoff_tokens and arm is Arm.HOLDOUT:
            # A comparison with requests whose prefill was not done elsewhere would say nothing.
            request.arm = _ON
        if barred is not None:
            request.unknown = barred
            request.alien_fields = barred_why if barred is Outcome.INCOMPATIBLE else ""
            request.notes.append(barred_why or barred.value)
        if barred is not None or arm is _OFF or not keys or not settings.tiers:
            request.phase = SETTLED
            return
        self._reuses.asked(now, data_class, keys)
        request.publish_end = self._publication.end_block(
            keys,
            block_tokens=settings.block_tokens,
            boundary_tokens=boundary_tokens,
            data_class=data_class,
        )
        if gives:
            request.publish_end = self._publication.permitted(
                len(keys),
                block_tokens=settings.block_tokens,
                boundary_tokens=boundary_tokens,
                data_class=data_class,
            )
        if handoff_tokens and request.arm is _ON:
            request.handoff_end = min(len(keys), handoff_tokens // settings.block_tokens)
            request.handoff_until = now + settings.handoff_seconds
        request.unknown = Outcome.FAILED
        request.hashes = hashes
        self._probe(now, request)

    def ask(
        self,
        now: float,
        rid: str,
        local_tokens: int,
        *,
        chunk_tokens: int,
        queued_tokens: int = 0,
        running_requests: int = 0,
        free_blocks: int = 1 << 40,
    ) -> Answer:
        """What to do with this request now. Idempotent and cheap: it may be polled at every step.

        `local_tokens` is what the engine itself holds of the prompt at this moment; it is the engine's
        knowledge alone, and may differ from one call to the next.
        """
        request = self._requests[rid]
        phase = request.phase
        if phase is CHOSEN:
            return LoadTo(request.end_block)
        if phase is LOADING:
            return _WAIT
        if phase is SETTLED:
            if not request.loads and request.ready_at is None:
                # The engine's own cache may have gained or lost blocks meanwhile: book what is true.
                request.local_tokens = local_tokens
            return _COMPUTE
        request.local_tokens = local_tokens
        if phase is PROBING or (request.handoff_until and self._awaits_handoff(now, request)):
            return _WAIT
        start = local_tokens // self.settings.block_tokens
        waited_out = request.wait_until is not None and now >= request.wait_until
        # Arms that never load are priced as if nobody else were loading: the trial compares them with
        # those that do.
        claimed_at = None
        if request.arm is _ON:
            claimed_at = self.flights.first_claim(request.keys, request.status, start)
        taken = claimed_at == start
        if taken and not waited_out and request.wait_until is not None:
            return _WAIT
        facts = self._facts(
            now,
            request,
            request.status if claimed_at is None or taken else request.status[:claimed_at],
            self.estimates.live(
                self.terms,
                chunk_tokens=chunk_tokens,
                queued_tokens=queued_tokens,
                running_requests=running_requests,
                free_blocks=free_blocks,
            ),
        )
        decision = decide(facts, self.terms)
        if request.handoff_end and decision.reason is Reason.UNKNOWN_PREFILL:
            # A replica that only decodes never learns what a prefill takes; this one was made elsewhere.
            decision = msgspec.structs.replace(
                decision, end_block=decision.candidate_end_block, reason=Reason.UNMEASURED
            )
        if request.expected_seconds is None and decision.candidate_bytes:
            last = max(1, (request.tokens - 1) // facts.block_tokens)
            request.expected_seconds = recompute_seconds(facts, last)
        if taken:
            usable = decision.candidate_end_block > start
            if usable and not waited_out and self._awaits(now, request, facts):
                return _WAIT
            if decision.loads:
                decision = _declined(decision, Reason.BUSY, start)
        elif decision.loads and not self.flights.budget.free:
            if not waited_out:
                worth = decision.recompute_seconds - decision.load_high_seconds + facts.queue_seconds
                self._wait(request, now + max(0.0, worth))
                return _WAIT
            decision = _declined(decision, Reason.BUSY, start)
        request.facts = facts
        request.decision = decision
        request.chosen_at = now
        request.wait_until = None
        if not decision.loads:
            request.phase = SETTLED
            return _COMPUTE
        request.phase = CHOSEN
        request.end_block = decision.end_block
        request.claim_until = now + self._load_limit(now, request)
        self._due_at = min(self._due_at, request.claim_until)
        self.flights.take(request, start, decision.end_block)
        return LoadTo(decision.end_block)

    def begin(self, now: float, rid: str, end_block: int, dest: BlockMemory | None) -> None:
        """Memory exists for the blocks up to `end_block` (at most what was decided): emits the loads.

        With `end_block` at or before the local blocks, or without `dest`, the load is given up: the engine
        found no memory. Where the claim has run out meanwhile, the load ends at once: `Loaded` says so.
        """
        request = self._requests[rid]
        facts, decision = request.facts, request.decision
        start = request.local_tokens // self.settings.block_tokens
        if facts is None or decision is None or not decision.loads or request.loads or request.finished:
            raise ValueError(f"request {rid!r} has no load to begin: it is {request.phase.name}")
        if request.phase is SETTLED:
            if dest is not None:
                self._news.append(Loaded(rid, start, True))
            return
        if request.phase is not CHOSEN:
            raise ValueError(f"request {rid!r} has begun its load already")
        end_block = min(end_block, request.end_block)
        if end_block <= start or dest is None:
            request.phase = SETTLED
            request.decision = _declined(decision, Reason.NO_MEMORY, start)
            self._release(request, success=None)
            return
        request.phase = LOADING
        request.end_block = end_block
        request.usable_end = start
        request.load_started = now
        limit = self._load_limit(now, request)
        request.load_until = now + limit
        at = start
        for segment in facts.segments:
            stop = min(segment.stop_block, end_block)
            if stop > at:
                op = self._operations.next_op()
                load = Load(op, rid, segment.tier, request.keys, at, stop, dest, limit, request.namespace)
                request.pending_loads.add(op)
                self.estimates.loads_in_flight[segment.tier] += 1
                self._operations.emit(now, load, request)
                at = stop

    def decides(self, rid: str) -> bool:
        """Whether the next `ask` may decide."""
        return self._requests[rid].phase is KNOWN

    def publishable(self, rid: str) -> int:
        """How many leading blocks of a request `computed` might store; known once it has been probed."""
        request = self._requests[rid]
        return 0 if request.arm is _OFF else request.publish_end

    def passed_over(self, rid: str) -> tuple[int, int] | None:
        """Tier and number of the first block that was held, and is computed by decision; None without one."""
        request = self._requests[rid]
        facts, decision = request.facts, request.decision
        if facts is None or decision is None or decision.loads or not facts.segments:
            return None
        return facts.segments[0].tier, facts.local_tokens // facts.block_tokens

    def computed(self, now: float, rid: str, tokens: int, *, clean: bool, source: BlockMemory) -> bool:
        """The prompt's KV up to `tokens` is in `source`: publish what is worth it and not there yet.

        `clean` is false when anything that it was computed from is in doubt; then nothing is published.
        True when stores were emitted: then `source` is lent until `Free`.
        """
        request = self._requests[rid]
        if request.phase is CHOSEN:
            self.begin(now, rid, 0, None)
        if request.ready_at is None:
            request.ready_at = now
        if not clean or request.arm is _OFF or self.mode == "off":
            return bool(request.pending_stores)
        settings = self.settings
        end = min(request.publish_end, tokens // settings.block_tokens, len(request.status))
        for start, stop in self._publishing.missing_runs(request, end):
            if not self._publishing.free:
                request.notes.append("not published: the slots for stores were taken")
                break
            store = Store(
                self._operations.next_op(),
                rid,
                request.keys,
                start,
                stop,
                source,
                settings.store_seconds,
                settings.lease_seconds,
                request.namespace,
                settings.ttl_seconds,
                keys_only=request.arm is Arm.SHADOW,
                worth_seconds=self.estimates.worth(start, stop, settings.block_tokens),
                idle_seconds=self.lifetimes.life_seconds(request.data_class, settings.ttl_seconds),
                touched_only=settings.touches_in_pool,
            )
            self._publishing.begin(store)
            request.pending_stores.add(store.op)
            request.published.append((start, stop))
            self._operations.emit(now, store, request)
        if request.pending_stores and self._news:
            # A Free that nobody has fetched yet would be taken to cover what has just been lent.
            self._news = [n for n in self._news if not (isinstance(n, Free) and n.rid == rid)]
        return bool(request.pending_stores)

    def finish(self, now: float, rid: str, ending: Ending) -> Account:
        """The request is over: settles its account.

        Operations still in flight go on until they are answered; an unfinished load is cancelled, and its
        memory comes back with `Free`.
        """
        request = self._requests[rid]
        if request.finished:
            raise ValueError(f"request {rid!r} is settled already: its tokens would be booked twice")
        request.finished = True
        if request.ready_at is None and not ending.aborted:
            request.ready_at = now if ending.ready_seconds is None else request.arrived + ending.ready_seconds
        if request.probe is not None:
            # The engine did not wait for it.
            self._operations.forget(request.probe)
            request.probe, request.unknown = None, Outcome.LATE
        if request.phase is LOADING:
            for op in request.pending_loads:
                self._operations.cancel(now, op)
            request.load_seconds = now - request.chosen_at
        request.phase = SETTLED
        self._release(request, success=None)
        self._judge(request, ending.aborted)
        account = settle(
            request,
            ending,
            settings=self.settings,
            terms=self.terms,
            mode=self.mode,
            prefill_seconds=self.estimates.prefill.seconds,
        )
        self._forget(request)
        return account

    def receive(self, now: float, completion: Completion) -> None:
        """What an executor has to say. Answers to operations that are long forgotten are ignored."""
        if isinstance(completion, Evicted):
            unread = completion.read.count(0)
            self.evicted_unread_blocks += unread
            self.evicted_read_blocks += len(completion.read) - unread
            return
        operation = self._operations.get(completion.op)
        if operation is None:
            return
        command, request = operation.command, operation.request
        if isinstance(completion, Staged):
            operation.staged_left -= 1
            if operation.staged_left == 0:
                self._returned(request, completion.op)
        elif isinstance(completion, ProbeDone) and isinstance(command, Probe):
            self._probe_answer(operation, completion)
        elif isinstance(completion, LoadDone) and isinstance(command, Load):
            self._load_answer(now, operation, command, completion)
        elif isinstance(completion, StoreDone) and isinstance(command, Store):
            self._store_answer(operation, command, completion)
        else:
            raise ValueError(
                f"{type(completion).__name__} is no answer to the {type(command).__name__} {completion.op}"
            )

    def tick(self, now: float) -> None:
        """Let deadlines pass. Cheap when none has; call it at every step, and at `next_deadline`."""
        if now >= self._operations.due_at:
            for op, operation in self._operations.overdue(now):
                if not operation.cancelled:
                    self._overdue(now, op, operation)
                elif now >= operation.abandon_at:  # not cancelled just now, with its request's other load
                    self._abandon(op, operation)
            self._operations.reckon()
        if now >= self._due_at:
            for request in list(self._requests.values()):
                if now >= _due(request):
                    self._waited(request)
            self._due_at = min(map(_due, self._requests.values()), default=_NEVER)

    def next_deadline(self) -> float | None:
        """When `tick` will have something to do, unless something happens before."""
        requests = min(map(_due, self._requests.values()), default=_NEVER)
        deadline = min(requests, self._operations.next_deadline())
        return None if deadline == _NEVER else deadline

    def take(self) -> list[Command]:
        """The commands emitted since the last call, in order."""
        return self._operations.take()

    def take_news(self) -> list[News]:
        """What the engine should know since the last call, in order."""
        news, self._news = self._news, []
        return news

    def switch(self, *, mode: str | None = None, policy: str | None = None) -> None:
        """Change the mode for requests that arrive, or the policy for those that are decided, from now on.

        The arm of a request is fixed when it arrives, so a switch never splits one request. A new mode
        begins a new trial: what made sharing turn itself off must not do so again at once.
        """
        if mode is not None and mode != self.mode:
            self.mode = mode
            self.trial = Trial()
        if policy is not None:
            self.terms = msgspec.structs.replace(self.terms, policy=policy)

    @property
    def stores_in_flight(self) -> int:
        """Publications that have not been answered yet."""
        return self._publishing.in_flight

    @property
    def idle(self) -> bool:
        """Whether no request and no operation is left."""
        return not self._requests and not len(self._operations)

    # -- operations ------------------------------------------------------------------------------------

    def _overdue(self, now: float, op: int, operation: Operation) -> None:
        """An executor has not even answered within the grace after its deadline."""
        request = operation.request
        if isinstance(operation.command, Probe):
            self._operations.forget(op)
            request.lookup_seconds = now - operation.started
            request.unknown = Outcome.LATE
            self._known(request, b"")
        elif isinstance(operation.command, Load):
            self._late(now, request)
        else:
            self._operations.cancel(now, op)
            request.notes.append("a store ran past its deadline")

    def _abandon(self, op: int, operation: Operation) -> None:
        """An executor that never answers: forget the operation. Its memory is never free again."""
        self._operations.forget(op)
        command, request = operation.command, operation.request
        if op in request.pending_loads or op in request.pending_stores:
            request.leaked = True
        if isinstance(command, Load):
            self.estimates.loads_in_flight[command.tier] -= 1
        elif isinstance(command, Store):
            self._publishing.end(command)
        self._returned(request, op)

    def _probe_answer(self, operation: Operation, done: ProbeDone) -> None:
        operation.probed(done)
        request = operation.request
        request.lookup_seconds = max(request.lookup_seconds, done.seconds)
        request.alien_fields = request.alien_fields or done.alien_fields
        if done.cause:
            request.notes.append(done.cause)
        if operation.ranks_left == 0:
            self._operations.forget(done.op)
            self._known(request, operation.status)

    def _known(self, request: Request, status: bytes) -> None:
        request.probe = None
        request.status = status
        request.phase = KNOWN
        self._news.append(Again(request.rid))

    def _load_answer(self, now: float, operation: Operation, command: Load, done: LoadDone) -> None:
        operation.loaded(done)
        if operation.ranks_left:
            return
        self._operations.forget(done.op)
        request = operation.request
        good, wanted = operation.good or 0, command.stop - command.start
        self.estimates.loads_in_flight[command.tier] -= 1
        self.estimates.load_done(
            command.tier,
            operation.legs,
            wanted_bytes=wanted * self.settings.block_tokens * self.settings.bytes_per_token,
            cause=operation.cause if good < wanted else None,
        )
        if good < wanted and operation.cause in (Outcome.CORRUPT, Outcome.INCOMPATIBLE):
            bad = command.start + good
            self._operations.tell(Drop(command.keys, bad, bad + 1, command.tier, operation.cause))
        if request.phase is LOADING:
            request.pending_loads.discard(done.op)
            self._record(request, command, good, operation.legs, operation.cause, operation.detail)
            if not request.pending_loads:
                self._conclude(now, request, safe=True)
        else:
            self._returned(request, done.op)

    def _late(self, now: float, request: Request) -> None:
        """Go on without loads that do not even answer; their memory stays lent."""
        if request.phase is not LOADING:
            return
        for op in request.pending_loads:
            operation = self._operations.get(op)
            if operation is not None and isinstance(operation.command, Load):
                self._operations.cancel(now, op)
                why = "no answer within the deadline and its grace"
                self._record(request, operation.command, 0, Legs(), Outcome.LATE, why)
        self._conclude(now, request, safe=False)

    @staticmethod
    def _record(
        request: Request, load: Load, good: int, legs: Legs, cause: Outcome | None, detail: str
    ) -> None:
        request.loads.append(LoadedRun(load.tier, load.start, load.stop, good, legs, cause, detail))

    def _conclude(self, now: float, request: Request, *, safe: bool) -> None:
        """Every load has answered, or is not waited for: what is whole from the front is usable."""
        request.loads.sort(key=lambda run: run.start)
        usable = request.local_tokens // self.settings.block_tokens
        for run in request.loads:
            usable = run.start + run.good
            if run.good < run.stop - run.start:
                request.failure = (usable, run.cause or Outcome.FAILED)
                break
        request.usable_end = usable
        request.load_seconds = now - request.chosen_at
        request.phase = SETTLED
        self._release(request, success=usable >= request.end_block)
        self._news.append(Loaded(request.rid, usable, safe))

    def _store_answer(self, operation: Operation, command: Store, done: StoreDone) -> None:
        operation.stored(done)
        if operation.ranks_left:
            return
        self._operations.forget(done.op)
        self._publishing.end(command)
        self.estimates.store_done(operation.legs)
        self._returned(operation.request, done.op)

    # -- requests --------------------------------------------------------------------------------------

    def _release(self, request: Request, *, success: bool | None) -> None:
        """Give back slot and claims; those who waited for either may ask again."""
        if self.flights.release(request, success=success):
            self._news.extend(
                Again(other.rid)
                for other in self._requests.values()
                if other.phase is KNOWN and other.wait_until is not None
            )

    def _returned(self, request: Request, op: int) -> None:
        """Operation `op` touches the request's memory no more; tell the engine when it was the last."""
        if op not in request.pending_loads and op not in request.pending_stores:
            return
        request.pending_loads.discard(op)
        request.pending_stores.discard(op)
        if request.pending_loads or request.pending_stores:
            return
        if not request.leaked:
            self._news.append(Free(request.rid))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        if request.finished and not request.pending_loads and not request.pending_stores:
            del self._requests[request.rid]

    def _probe(self, now: float, request: Request) -> None:
        timeout = self.settings.probe_seconds
        if self.estimates.prefill.n:
            # A look-up that is late costs a whole prefill: for a long prompt it is worth waiting for.
            prefill = self.estimates.prefill.seconds(request.tokens, 0, request.tokens)
            timeout = max(timeout, min(_PROBE_SHARE * prefill, self.settings.load_seconds))
        if request.deadline is not None:
            timeout = max(0.0, min(timeout, request.deadline - now))
        probe = Probe(
            self._operations.next_op(),
            request.rid,
            request.keys,
            request.hashes,
            0,
            len(request.keys),
            timeout,
            request.namespace,
            keys_only=request.arm is Arm.SHADOW,
        )
        request.probe, request.phase, request.asked_at = probe.op, PROBING, now
        self._operations.emit(now, probe, request)

    def _awaits_handoff(self, now: float, request: Request) -> bool:
        """Whether to ask again for blocks that the replica which did the prefill has not published yet."""
        start = request.local_tokens // self.settings.block_tokens
        status = request.status[start : request.handoff_end]
        until = request.handoff_until
        if request.deadline is not None:
            until = min(until, request.deadline)
        if now >= until or all(byte >= TIER for byte in status) or _FAILED in status:
            request.handoff_until = 0.0
            request.wait_until, request.woken = None, False
            return False
        again = request.asked_at + _ASK_AGAIN_SECONDS
        if now >= again:
            request.wait_until, request.woken = None, False
            self._probe(now, request)
        else:
            request.wait_until, request.woken = again, False
            self._due_at = min(self._due_at, again)
        return True

    def _awaits(self, now: float, request: Request, facts: Facts) -> bool:
        """Whether to wait for the load that another request has claimed the first of these blocks for."""
        owner = self.flights.owner(request.keys[facts.local_tokens // facts.block_tokens])
        until = owner.load_until if owner.pending_loads else owner.claim_until
        if self.terms.policy != "always":
            # The other load may be much longer than what is wanted of it.
            worth = recompute_seconds(facts, facts.segments[-1].stop_block)
            if self.flights.expected_end(owner) - now >= worth:
                return False
            until = min(until, now + worth)
        self._wait(request, until)
        return True

    def _wait(self, request: Request, until: float) -> None:
        """Wait until then at most, and not beyond the request's own deadline or an earlier wait's end."""
        for other in (request.wait_until, request.deadline):
            until = until if other is None else min(until, other)
        request.wait_until = until
        self._due_at = min(self._due_at, until)

    def _waited(self, request: Request) -> None:
        """A request's wait is over, or its claim has run out before there was memory for the load."""
        if request.phase is CHOSEN:
            request.phase = SETTLED
            request.failure = (request.local_tokens // self.settings.block_tokens, Outcome.LATE)
            self._release(request, success=None)
        else:
            request.woken = True
        self._news.append(Again(request.rid))

    def _facts(self, now: float, request: Request, status: bytes, live: Live) -> Facts:
        size = self.settings.block_tokens
        return Facts(
            prompt_tokens=request.tokens,
            local_tokens=request.local_tokens,
            block_tokens=size,
            bytes_per_token=self.settings.bytes_per_token,
            segments=self.estimates.segments(status, request.local_tokens // size, self.terms),
            live=live,
            arm=request.arm,
            lookup_seconds=request.lookup_seconds,
            queue_seconds=self.flights.seconds_until_slot(now),
            max_load_tokens=request.max_load_tokens,
            deadline_seconds=self._load_budget(now, request),
            explore=request.explore,
        )

    def _load_budget(self, now: float, request: Request) -> float:
        """Seconds that a load of this request may take at most, whatever it would save."""
        if request.deadline is None:
            return self.settings.load_seconds
        return max(0.0, min(self.settings.load_seconds, request.deadline - now))

    def _load_limit(self, now: float, request: Request) -> float:
        """Seconds after which a load is given up.

        Not much later than computing would have been done: a load cut off just before its end and then
        computed costs the most of all, so it gets a little more than either side was predicted to take.
        """
        facts, decision = request.facts, request.decision
        budget = self._load_budget(now, request)
        if facts is None or decision is None:
            return budget
        if self.terms.policy == "always" or facts.live.prefill_observations == 0:
            return budget
        if decision.reason is Reason.EXPLORES_LOAD:
            # It is tried in the hope that the prediction is wrong, so the prediction sets no limit.
            worth = self.terms.explore_limit * recompute_seconds(facts, facts.segments[-1].stop_block)
        else:
            worth = max(decision.load_high_seconds, recompute_seconds(facts, decision.candidate_end_block))
        return min(budget, self.settings.patience * worth)

    def _judge(self, request: Request, aborted: bool) -> None:
        """Fold the request into the comparison with the holdout; turn sharing off when it costs."""
        if aborted or request.expected_seconds is None or request.ready_at is None or request.handoff_end:
            return
        if request.arm not in (_ON, Arm.HOLDOUT):
            return
        self.trial.observe(
            treated=request.arm is _ON,
            ready_seconds=request.ready_at - request.arrived,
            recompute_seconds=request.expected_seconds,
        )
        saving = self.trial.saving()
        if self.settings.auto_off and self.mode == "on" and saving is not None and saving.costs:
            self.mode = "off"
            request.notes.append(
                f"sharing costs here: it saves {saving.share:.1%} ({saving.low:.1%} to {saving.high:.1%}) "
                "of recompute time, so it has turned itself off"
            )


def _declined(decision: Decision, reason: Reason, local_blocks: int) -> Decision:
    """The same prices, but nothing is loaded."""
    return msgspec.structs.replace(decision, end_block=local_blocks, reason=reason)


def _due(request: Request) -> float:
    """When a request's claim or wait runs out; infinite without either."""
    if request.phase is CHOSEN:
        return request.claim_until
    if request.phase is KNOWN and request.wait_until is not None and not request.woken:
        return request.wait_until
    return _NEVER
