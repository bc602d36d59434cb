"""The gate in front of a connector that is not ours: it sees every offer, and lets it pass or not.

Owns the life of a request from its arrival to its record: what the inner connector offers is priced by the
house rule from live facts, and answered in whole or not at all. Knows nothing of vLLM: the wrapper
translates. Moves no byte, so a failure here can only cost time.

A veto is sticky: every later ask of the same request is answered 0. So is a failed load: a request is never
offered it again, or an engine that asks anew after each failure would turn in circles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from ....cache.account import Account
from ....cache.estimates import Estimates
from ....cache.settings import CacheSettings
from ....cache.settle import Ending
from ....clock import Clock
from ....errors import InputError
from ....gate.decide import recompute_seconds
from ....gate.facts import Arm, Decision, Facts, Reason
from ....gate.trial import Trial
from ....store.tier import Kind
from .closing import close_books
from .facts import facts_of
from .pace import Pace, Row, Step
from .passing import EngineRequest, Passing, arrival
from .transfers import Transfers
from .whole import decide_whole, declined, left_alone

__all__ = ["ForeignGate"]

# How long after the last load an exploring request may try one that is predicted to take far too long.
_RETRY_SECONDS = 60.0
# A request with a finished prompt that gets more tokens than this computes what a preemption took from it.
_MOST_DRAFTS = 32
_MODES = ("off", "shadow", "canary", "on")
_POLICIES = ("rule", "always", "never")
_NEVER_LOADS = (Arm.HOLDOUT, Arm.OUTSIDE)


class ForeignGate:
    """Decides and books for one engine. One thread calls everything: the engine's scheduler."""

    def __init__(
        self,
        settings: CacheSettings,
        *,
        kind: Kind,
        chunk_tokens: int,
        data_class: str,
        clock: Clock,
        on_settled: Callable[[Passing, Account], None],
    ) -> None:
        self.settings = settings
        self.mode = settings.mode
        self.terms = settings.terms
        self.estimates = Estimates(1)
        self.trial = Trial()
        self.transfers = Transfers(settings, self.estimates, kind)
        self._chunk_tokens = chunk_tokens
        self._data_class = data_class
        self._clock = clock
        self._on_settled = on_settled
        self._pace = Pace(self.estimates)
        self._passing: dict[str, Passing] = {}
        self._prefilling: dict[str, Passing] = {}
        self._decoding: set[str] = set()
        self._loads_of_steps: deque[list[Passing]] = deque(maxlen=64)
        self._ending: list[Passing] = []

    # -- what the engine says of a request --------------------------------------------------------------

    def arrive(
        self, rid: str, engine: EngineRequest, prompt_tokens: int, params: Mapping[str, Any] | None
    ) -> None:
        """A new request. A streaming session that comes back under its id goes on as it was."""
        if rid not in self._passing:
            self._passing[rid] = arrival(
                engine,
                rid=rid,
                prompt_tokens=prompt_tokens,
                params=params,
                now=self._clock.now(),
                wall=self._clock.wall(),
                mode=self.mode,
                settings=self.settings,
                data_class=self._data_class,
            )

    def asked(self, rid: str) -> None:
        """The engine asks, and the inner connector begins to look: what it takes is the lookup."""
        passing = self._passing.get(rid)
        if passing is not None and passing.asked_at is None:
            passing.asked_at = self._clock.now()

    def answer(self, rid: str, local_tokens: int, found: int | None) -> int | None:
        """What the engine is told in place of `found`, the inner connector's offer beyond `local_tokens`.

        The whole of it, 0, or None: ask again at the next step.
        """
        passing = self._passing.get(rid)
        if passing is None:
            return found
        now, books = self._clock.now(), passing.books
        if found is None:
            return None
        if not passing.answered:
            passing.answered = True
            books.lookup_seconds = 0.0 if passing.asked_at is None else now - passing.asked_at
        if passing.vetoed:
            return 0
        if passing.admitted:
            # Asked again after a preemption.
            return 0 if books.arm in _NEVER_LOADS else found
        books.local_tokens = local_tokens
        passing.found_tokens = max(0, found)
        if books.arm is Arm.OFF:
            return found
        if found <= 0:
            self.transfers.give_back_slot(passing)
            local = local_tokens // self.settings.block_tokens
            books.facts = self._facts(passing)
            books.decision = Decision(local, Reason.NOTHING_FOUND, candidate_end_block=local)
            return found
        if books.decision is not None and books.decision.reason is not Reason.NOTHING_FOUND:
            return found
        return self._decide(now, passing, found)

    def admitted(
        self,
        rid: str,
        external_tokens: int,
        *,
        asynchronous: bool,
        blocks: Sequence[int],
        sources: Mapping[Kind, int],
    ) -> None:
        """The engine has made room, and the inner connector was told to load so many tokens (0: none).

        `blocks` are the engine's ids of the request's blocks from the first on, `sources` tokens by where
        the connector has them; both may be empty where they are not known.
        """
        passing = self._passing.get(rid)
        if passing is None:
            return
        books = passing.books
        if external_tokens > 0 and passing.transfer is None:
            self.transfers.begin(
                self._clock.now(),
                passing,
                external_tokens,
                asynchronous=asynchronous,
                blocks=blocks,
                sources=sources,
            )
        elif passing.holds_slot and passing.transfer is None:
            self.transfers.give_back_slot(passing)
            if books.decision is not None:
                local = books.local_tokens // self.settings.block_tokens
                books.decision = declined(books.decision, Reason.NOT_ALLOWED, local)
                books.notes.append("the engine took nothing of what was offered")
        passing.admitted = True
        if books.ready_at is None:
            self._prefilling[rid] = passing

    def finish(self, rid: str, *, aborted: bool) -> None:
        """The request is over: its books are closed, now or with the step that was its last."""
        passing = self._passing.pop(rid, None)
        if passing is None:
            return
        self._decoding.discard(rid)
        if not aborted and rid in self._prefilling:
            # Its first step was its last, and the engine reports the step after the request.
            self._ending.append(passing)
            return
        self._prefilling.pop(rid, None)
        self._close(passing, aborted)

    def close(self) -> None:
        """No step comes any more."""
        while self._ending:
            self._close(self._ending.pop(), False)

    # -- what the engine says of its steps --------------------------------------------------------------

    def step_began(self, scheduled: Mapping[str, int]) -> None:
        """A step was scheduled, with so many tokens for each of its requests."""
        rows: list[Row] = []
        loads: list[Passing] = []
        decodes = 0
        for rid, tokens in scheduled.items():
            passing = self._prefilling.get(rid)
            if passing is None and tokens <= _MOST_DRAFTS:
                decodes += 1
                continue
            known = passing or self._passing.get(rid)
            rows.append(Row(rid, tokens, 0 if known is None else known.engine.num_computed_tokens))
            if known is not None and known.transfer is not None and not known.transfer.asynchronous:
                loads.append(known)
        self._loads_of_steps.append(loads)
        self._pace.began(self._clock.now(), rows, decodes, loads=bool(loads))

    def heard(
        self, finished_loads: Collection[str], failed_loads: Collection[str], failed_blocks: Collection[int]
    ) -> None:
        """The workers' report: asynchronous loads that ended, and what of any load failed."""
        self.transfers.heard(self._clock.now(), finished_loads, failed_loads, failed_blocks)

    def step_ended(self) -> None:
        """The oldest step's output is there."""
        now = self._clock.now()
        step = self._pace.ended(now)
        loads = self._loads_of_steps.popleft() if self._loads_of_steps else []
        failed = self.transfers.step_ended(now, loads, step)
        if step is not None:
            self._count(now, step, failed)
        ending, self._ending = self._ending, []
        for passing in ending:
            self._prefilling.pop(passing.rid, None)
            self._decoding.discard(passing.rid)
            self._close(passing, False)

    def _count(self, now: float, step: Step, failed: frozenset[str]) -> None:
        """Which prompts the step has brought forward."""
        seconds = step.seconds - (step.extra_seconds or 0.0)
        for row in step.rows:
            passing = self._prefilling.get(row.rid)
            if passing is None:
                continue
            if passing.first_step_at is None:
                passing.first_step_at = step.began
            if row.rid in failed:
                # The engine throws away what this step computed for it.
                continue
            tokens = passing.books.tokens
            passing.computed_tokens += min(row.tokens, max(0, tokens - row.context))
            passing.prefill_seconds += seconds
            if row.context + row.tokens >= tokens:
                passing.books.ready_at = now
                del self._prefilling[row.rid]
                self._decoding.add(row.rid)

    # -- the controls -----------------------------------------------------------------------------------

    def change(self, *, mode: str | None = None, policy: str | None = None) -> None:
        """Another mode for requests that arrive from now on, another policy for those not yet decided.

        Raises `InputError` for a word that is none.
        """
        for name, value, known in (("gate.mode", mode, _MODES), ("gate.policy", policy, _POLICIES)):
            if value is not None and value not in known:
                raise InputError(f"{name}: {value!r} is not one of {', '.join(known)}")
        if mode is not None and mode != self.mode:
            self.mode, self.trial = mode, Trial()
        if policy is not None:
            self.terms = msgspec.structs.replace(self.terms, policy=policy)

    # -- inside -----------------------------------------------------------------------------------------

    def _close(self, passing: Passing, aborted: bool) -> None:
        books, now = passing.books, self._clock.now()
        if passing.transfer is None:
            self.transfers.give_back_slot(passing)
        else:
            # The load goes on without its request, and what it takes says nothing any more.
            passing.transfer.learns = passing.transfer.books = False
            books.load_seconds = now - (books.chosen_at or passing.transfer.started)
        if books.ready_at is None and not aborted:
            books.ready_at = now
        self._judge(passing, aborted)
        dispatch = 0.0
        if passing.first_step_at is not None and books.chosen_at:
            dispatch = max(0.0, passing.first_step_at - books.chosen_at)
        # A prompt that was preempted half-way has computed some of its tokens twice.
        hit = max(books.local_tokens, books.usable_end * self.settings.block_tokens)
        computed = min(passing.computed_tokens, max(0, books.tokens - hit))
        account = close_books(
            passing,
            Ending(aborted, computed, passing.prefill_seconds, dispatch),
            settings=self.settings,
            terms=self.terms,
            mode=self.mode,
            prefill_seconds=self.estimates.prefill.seconds,
        )
        self._on_settled(passing, account)

    def _decide(self, now: float, passing: Passing, found: int) -> int | None:
        books = passing.books
        local = books.local_tokens // self.settings.block_tokens
        budget = self.settings.load_seconds
        if books.deadline is not None:
            budget = max(0.0, min(budget, books.deadline - now))
        retry = now - self.transfers.last_end > _RETRY_SECONDS
        facts, decision = decide_whole(self._facts(passing), self.terms, budget_seconds=budget, retry=retry)
        if books.expected_seconds is None and decision.candidate_bytes:
            last = max(1, (books.tokens - 1) // facts.block_tokens)
            books.expected_seconds = recompute_seconds(facts, last)
        if decision.loads and not self.transfers.budget.free:
            if books.wait_until is None:
                spare = decision.recompute_seconds - decision.load_high_seconds
                books.wait_until = now + min(budget, max(0.0, spare))
            if now < books.wait_until:
                return None
            decision = declined(decision, Reason.BUSY, local)
        books.facts, books.decision, books.chosen_at = facts, decision, now
        if books.arm is Arm.SHADOW:
            alone = left_alone(facts, self.terms, budget_seconds=budget)
            books.notes.append(
                f"the gate only watches; it would have {'loaded' if alone.loads else 'computed'} "
                f"({alone.reason.value})"
            )
            return found
        if decision.loads:
            self.transfers.take_slot(passing)
            return found
        passing.vetoed = True
        return 0

    def _facts(self, passing: Passing) -> Facts:
        return facts_of(
            passing,
            settings=self.settings,
            terms=self.terms,
            estimates=self.estimates,
            transfers=self.transfers,
            ahead=self._prefilling.values(),
            decoding=len(self._decoding),
            chunk_tokens=self._chunk_tokens,
        )

    def _judge(self, passing: Passing, aborted: bool) -> None:
        """Compare with the holdout; where loading costs, load no more."""
        books = passing.books
        if aborted or books.expected_seconds is None or books.ready_at is None:
            return
        if books.arm not in (Arm.ON, Arm.HOLDOUT):
            return
        self.trial.observe(
            treated=books.arm is Arm.ON,
            ready_seconds=books.ready_at - books.arrived,
            recompute_seconds=books.expected_seconds,
        )
        saving = self.trial.saving()
        turned = self.settings.auto_off and self.mode == "on" and self.terms.policy != "never"
        if turned and saving is not None and saving.costs:
            self.change(policy="never")
            books.notes.append(
                f"loading costs here: it saves {saving.share:.1%} ({saving.low:.1%} to {saving.high:.1%}) "
                "of recompute time, so nothing is loaded any more"
            )
