"""Any order of events: hypothesis plays engine, executors and time against the machine.

Two ranks, two tiers. The test knows which blocks are whole on every rank, what of a request was handed to
the engine as usable, and who may still touch memory; the rest is stated as invariants. After each run the
executors are dead, and ticks alone must bring everything to rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rig import BLOCK, BLOCK_BYTES, Memory, chain, learn, settings

from kvferry.cache.account import Account
from kvferry.cache.commands import (
    Cancel,
    Drop,
    Free,
    Legs,
    Load,
    LoadDone,
    Loaded,
    Probe,
    ProbeDone,
    Staged,
    Status,
    Store,
    StoreDone,
)
from kvferry.cache.machine import Cache
from kvferry.cache.requests import Compute, LoadTo, Phase, Request, Wait
from kvferry.cache.settle import Ending
from kvferry.gate.facts import Reason
from kvferry.gate.publication import Publication
from kvferry.outcomes import Outcome

RANKS = 2
BLOCKS = 5
PROMPTS = [chain(BLOCKS, "p"), chain(2, "p") + chain(BLOCKS, "q")[2:], chain(BLOCKS, "r")]
HOST, POOL = 16, 17
CAUSES = [Outcome.EVICTED, Outcome.CORRUPT, Outcome.INCOMPATIBLE, Outcome.FAILED, Outcome.LATE]

INDEX = st.integers(0, 7)
FOUND = st.one_of(
    st.sampled_from([bytes([POOL]) * 5, bytes([HOST]) * 2 + bytes([POOL]) * 3, bytes([POOL]) * 3 + bytes(2)]),
    st.lists(
        st.sampled_from([POOL, HOST, *(s for s in Status if s < Status.TIER)]), min_size=5, max_size=5
    ).map(bytes),
)


@dataclass
class Answering:
    """One rank's side of one operation that was sent and not answered."""

    command: Probe | Load | Store
    rank: int
    staged: bool = False


@dataclass
class Life:
    """What the test knows of one request."""

    keys: Sequence[bytes]
    tokens: int
    local: int = 0
    answer: object = None
    held: bytes | None = None
    """Truth of the lookup: what the ranks said; the lower status where they differ."""
    loads: dict[int, Load] = field(default_factory=dict)
    good: dict[int, list[int]] = field(default_factory=dict)
    """Load operation -> good blocks of each rank that answered."""
    loaded: Loaded | None = None
    lent: set[tuple[int, int]] = field(default_factory=set)
    """(operation, rank) that may still touch this request's memory."""
    ready: bool = False
    clean_tokens: int = 0


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 2),
        holdout=st.sampled_from([0.0, 0.0, 0.3]),
        learned=st.sampled_from([True, True, False]),
        abandon=st.sampled_from([0.0, 5.0, 60.0]),
    )
    def start(self, slots: int, holdout: float, learned: bool, abandon: float) -> None:
        self.cache = Cache(
            settings(
                ranks=RANKS,
                replica_loads=2,
                new_replica_loads=slots,
                replica_stores=2,
                holdout_share=holdout,
                explore_share=0.2,
                abandon_seconds=abandon,
                auto_off=False,
            ),
            Publication("all", ["default"]),
        )
        if learned:
            learn(self.cache)
        self.now = 0.0
        self.lives: dict[str, Life] = {}
        self.open: dict[str, Life] = {}
        self.sent: dict[int, Probe | Load | Store] = {}
        self.pending: list[Answering] = []
        self.cancelled: set[int] = set()

    def pick(self, index: int) -> tuple[str, Life]:
        rid = list(self.open)[index % len(self.open)]
        return rid, self.open[rid]

    def request(self, rid: str) -> Request:
        return self.cache._requests[rid]

    # -- moves of the engine -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.open) < 4)
    @rule(
        prompt=st.sampled_from(PROMPTS),
        tail=st.sampled_from([5, 0, 1]),
        deadline=st.sampled_from([None, None, None, 0.05, 1.0]),
        found=st.one_of(st.none(), FOUND, FOUND, FOUND),
    )
    def arrive(self, prompt: Sequence[bytes], tail: int, deadline: float | None, found: bytes | None) -> None:
        """A request; with `found` its lookup is answered at once, or most runs would end in time-outs."""
        rid = f"r{len(self.lives)}"
        tokens = len(prompt) * BLOCK + tail
        self.lives[rid] = self.open[rid] = Life(prompt, tokens)
        self.cache.arrive(self.now, rid, prompt, tokens, deadline_seconds=deadline)
        self.take()
        while found is not None and isinstance(self.pending[-1].command, Probe):
            self.reply(self.pending.pop(), found, True, 0, Outcome.FAILED, 0.001)
            if not self.pending:
                break

    @precondition(lambda self: self.open)
    @rule(
        index=INDEX,
        local=st.sampled_from([0, 0, 0, 0, 16, 23, 80]),
        free=st.sampled_from([100, 100, 100, 100, 2, 0]),
        at_once=st.sampled_from([True, True, False]),
    )
    def ask(self, index: int, local: int, free: int, at_once: bool) -> None:
        """What now? With `at_once` there is memory, and a load that is chosen begins."""
        rid, life = self.pick(index)
        if life.ready:
            return
        before = self.request(rid).phase
        answer = self.cache.ask(self.now, rid, local, chunk_tokens=64, running_requests=2, free_blocks=free)
        if before in (Phase.PROBING, Phase.KNOWN) or (before is Phase.SETTLED and not life.loads):
            life.local = local
        if isinstance(life.answer, Compute):
            assert isinstance(answer, Compute), "computing is for good"
        if before is Phase.KNOWN and isinstance(answer, LoadTo):
            self.check_choice(rid, life, answer.end_block, free)
            if at_once:
                self.cache.begin(self.now, rid, answer.end_block, Memory())
                self.take()
                answer = Wait()
        life.answer = answer

    def check_choice(self, rid: str, life: Life, end: int, free: int) -> None:
        """Nothing is loaded that is not there, or by two; and no benefit is lost."""
        assert life.held is not None
        request = self.request(rid)
        start = best = life.local // BLOCK
        while best < (life.tokens - 1) // BLOCK and life.held[best] >= Status.TIER:
            best += 1
        assert start < end <= best
        claimed = [r for r in self.cache._requests.values() if r.claimed is not None and r is not request]
        taken = {key for r in claimed for key in r.keys[slice(*r.claimed)]}  # type: ignore[misc]
        assert not taken & set(life.keys[start:end]), "a block is in at most one load"
        assert request.decision is not None
        if request.decision.reason is not Reason.EXPLORES_LOAD and request.deadline is None:
            stop = next((i for i in range(start, best) if life.keys[i] in taken), best)
            slower_tier_left = end < stop and life.held[end] != life.held[end - 1]
            assert end == min(stop, start + free) or slower_tier_left, "the best usable prefix was not taken"

    @precondition(lambda self: any(isinstance(life.answer, LoadTo) for life in self.open.values()))
    @rule(index=INDEX, fewer=st.sampled_from([0, 0, 0, 1]), memory=st.sampled_from([True] * 5 + [False]))
    def begin(self, index: int, fewer: int, memory: bool) -> None:
        chosen = [(rid, life) for rid, life in self.open.items() if isinstance(life.answer, LoadTo)]
        rid, life = chosen[index % len(chosen)]
        assert isinstance(life.answer, LoadTo)
        end = life.answer.end_block - fewer
        life.answer = None
        self.cache.begin(self.now, rid, end, Memory() if memory else None)
        self.take()

    @precondition(lambda self: self.open)
    @rule(
        index=INDEX,
        blocks=st.sampled_from([BLOCKS, BLOCKS, 2, 0]),
        clean=st.sampled_from([True, True, False]),
    )
    def computed(self, index: int, blocks: int, clean: bool) -> None:
        rid, life = self.pick(index)
        phase = self.request(rid).phase
        if phase in (Phase.PROBING, Phase.KNOWN, Phase.LOADING) or (phase is Phase.CHOSEN and blocks):
            return
        tokens = min(life.tokens, blocks * BLOCK + 3)
        if clean:
            life.clean_tokens = max(life.clean_tokens, tokens)
        life.ready = True
        life.answer = None
        self.cache.computed(self.now, rid, tokens, clean=clean, source=Memory())
        self.take()

    @precondition(lambda self: self.open)
    @rule(index=INDEX, aborted=st.sampled_from([False] * 5 + [True]), share=st.sampled_from([0.0, 0.4, 1.0]))
    def finish(self, index: int, aborted: bool, share: float) -> None:
        rid, life = self.pick(index)
        if not life.ready and not aborted:
            return
        del self.open[rid]
        self.check_account(
            life, self.cache.finish(self.now, rid, Ending(aborted, int(life.tokens * share), 0.01))
        )
        self.take()

    def check_account(self, life: Life, account: Account) -> None:
        assert sum(account.ledger.values()) == life.tokens
        assert all(tokens > 0 for tokens in account.ledger.values())
        assert account.lost_seconds >= 0.0
        hits = sum(account.ledger.get(o, 0) for o in (Outcome.HOST_HIT, Outcome.POOL_HIT))
        told = life.loaded.end_block if life.loaded is not None else 0
        assert hits == max(0, told * BLOCK - life.local) if life.loads else hits == 0
        with pytest.raises((ValueError, KeyError)):
            self.cache.finish(self.now, account.rid, Ending())

    # -- moves of the executors --------------------------------------------------------------------------

    def take(self) -> None:
        """Executors get what was sent, and the engine its news."""
        for command in self.cache.take():
            if isinstance(command, Cancel):
                assert command.op in self.sent, "cancelled before it was sent"
                assert command.op not in self.cancelled, "cancelled twice"
                self.cancelled.add(command.op)
            elif isinstance(command, Drop):
                assert command.cause in (Outcome.CORRUPT, Outcome.INCOMPATIBLE)
            else:
                assert command.op not in self.sent, "an operation has one number"
                self.send(command)
        for news in self.cache.take_news():
            life = self.lives[news.rid]
            if isinstance(news, Loaded):
                assert life.loaded is None, "a load ends once"
                life.loaded = news
                self.check_usable(life, news)
            elif isinstance(news, Free):
                assert not life.lent, "memory came back while somebody may touch it"

    def send(self, command: Probe | Load | Store) -> None:
        self.sent[command.op] = command
        life = self.lives[command.rid]
        if isinstance(command, Load):
            assert life.loaded is None, "a settled request loads again"
            life.loads[command.op] = command
        elif isinstance(command, Store):
            assert command.stop * BLOCK <= life.clean_tokens, "published beyond what is clean"
        for rank in range(RANKS):
            self.pending.append(Answering(command, rank))
            if not isinstance(command, Probe):
                life.lent.add((command.op, rank))

    def check_usable(self, life: Life, news: Loaded) -> None:
        """Contiguous from the local blocks, whole on every rank, and no less than that."""
        whole = {
            block
            for op, load in life.loads.items()
            if len(life.good.get(op, [])) == RANKS
            for block in range(load.start, load.start + min(life.good[op]))
        }
        usable = life.local // BLOCK
        while usable in whole:
            usable += 1
        assert news.end_block == usable
        writing = {op for op, _ in life.lent if op in life.loads}
        assert news.safe == (not writing), "memory is safe when no load can write to it any more"

    @precondition(lambda self: self.pending)
    @rule(
        index=INDEX,
        found=FOUND,
        agree=st.sampled_from([True, True, True, False]),
        good=st.sampled_from([9, 9, 9, 0, 1, 2]),
        cause=st.sampled_from(CAUSES),
        seconds=st.sampled_from([0.0, 0.001, 0.5]),
    )
    def answer(
        self, index: int, found: bytes, agree: bool, good: int, cause: Outcome, seconds: float
    ) -> None:
        self.reply(self.pending.pop(index % len(self.pending)), found, agree, good, cause, seconds)

    def reply(
        self, answering: Answering, found: bytes, agree: bool, good: int, cause: Outcome, seconds: float
    ) -> None:
        command, rank = answering.command, answering.rank
        life = self.lives[command.rid]
        life.lent.discard((command.op, rank))
        if isinstance(command, Probe):
            if life.held is None:
                life.held = found
            elif agree:
                found = life.held
            life.held = bytes(
                a if a == b else min(a, b) if min(a, b) < Status.TIER else Status.ABSENT
                for a, b in zip(life.held, found, strict=True)
            )
            self.cache.receive(self.now, ProbeDone(command.op, found, seconds, rank=rank))
        elif isinstance(command, Load):
            wanted = command.stop - command.start
            good = min(good, wanted)
            life.good.setdefault(command.op, []).append(good)
            legs = Legs(0.0, seconds, 0.0, good * BLOCK_BYTES)
            why = None if good == wanted else cause
            self.cache.receive(self.now, LoadDone(command.op, good, why, legs, rank))
        else:
            self.cache.receive(self.now, StoreDone(command.op, 1, BLOCK_BYTES, rank=rank))
        self.take()

    @precondition(lambda self: any(isinstance(a.command, Store) and not a.staged for a in self.pending))
    @rule(index=INDEX)
    def stage(self, index: int) -> None:
        stores = [a for a in self.pending if isinstance(a.command, Store) and not a.staged]
        answering = stores[index % len(stores)]
        answering.staged = True
        self.lives[answering.command.rid].lent.discard((answering.command.op, answering.rank))
        self.cache.receive(self.now, Staged(answering.command.op, answering.rank))
        self.take()

    # -- time ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.001, 0.01, 0.01, 0.1, None, None, 100.0]))
    def pass_time(self, seconds: float | None) -> None:
        """So many seconds, or until the next deadline."""
        if seconds is None:
            seconds = max(0.0, (self.cache.next_deadline() or 0.0) - self.now)
        self.now += seconds
        self.cache.tick(self.now)
        self.take()

    # -- what always holds ---------------------------------------------------------------------------------

    @invariant()
    def claims_and_slots_have_a_live_owner(self) -> None:
        requests = self.cache._requests
        holders = [r for r in requests.values() if r.phase in (Phase.CHOSEN, Phase.LOADING)]
        assert self.cache.flights.budget.in_flight == len(holders)
        assert {r.rid for r in holders} == set(self.cache.flights._claims)

    @invariant()
    def nothing_waits_without_a_deadline(self) -> None:
        deadline = self.cache.next_deadline()
        for request in self.cache._requests.values():
            if request.phase in (Phase.PROBING, Phase.CHOSEN, Phase.LOADING):
                assert deadline is not None
            elif deadline is None:
                assert request.wait_until is None or request.woken or request.phase is Phase.SETTLED
            elif request.phase is Phase.KNOWN and isinstance(self.lives[request.rid].answer, Wait):
                assert request.wait_until is None or request.woken or deadline <= request.wait_until

    @invariant()
    def what_is_counted_in_flight_is_in_flight(self) -> None:
        running = [o.command for o in self.cache._operations._running.values()]
        for tier in (0, 1):
            loads = [c for c in running if isinstance(c, Load) and c.tier == tier]
            assert self.cache.estimates.loads_in_flight[tier] == len(loads)
        stores = [c for c in running if isinstance(c, Store)]
        assert self.cache.stores_in_flight == len(stores)

    @invariant()
    def ticks_are_not_missed(self) -> None:
        deadline = self.cache.next_deadline()
        if deadline is not None:
            assert min(self.cache._due_at, self.cache._operations.due_at) <= deadline

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for rid, life in self.open.items():
            self.check_account(life, self.cache.finish(self.now, rid, Ending(aborted=True)))
        self.take()
        for _ in range(1000):
            if self.cache.next_deadline() is None:
                break
            self.pass_time(None)
        assert self.cache.idle
        assert self.cache.flights.claims == 0
        assert self.cache.flights.budget.in_flight == 0
        assert self.cache.estimates.loads_in_flight == [0, 0]
        assert self.cache.stores_in_flight == 0
        assert not self.cache._publishing._storing
        unanswered = {a.command.op for a in self.pending if not isinstance(a.command, Probe)}
        assert unanswered <= self.cancelled, "an operation was forgotten without being cancelled"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(max_examples=150, stateful_step_count=60)
