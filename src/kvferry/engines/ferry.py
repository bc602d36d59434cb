"""kvferry beside the embedded engine: its thread asks, the executor's threads answer, under one lock.

Owns no rule: decisions are the gate's, states the machine's, bytes the tiers'. What is settled goes to
records, metrics and the run-time switches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ..cache.commands import (
    BlockMemory,
    Command,
    Completion,
    Evicted,
    LoadDone,
    News,
    ProbeDone,
    Status,
    StoreDone,
)
from ..cache.machine import Cache
from ..cache.requests import LoadTo
from ..cache.requests import Wait as CacheWait
from ..cache.settle import Ending
from ..clock import Clock
from ..config import Config
from ..errors import InputError
from ..executors.shelf import Shelf
from ..outcomes import Outcome
from ..runs.decisions import DecisionRecord
from ..telemetry.accounts import record_account
from ..telemetry.metrics import Metrics
from ..telemetry.names import Mode, Part, StepKind
from ..telemetry.tiers import record_tiers, record_tiers_gone
from ..telemetry.traces import Traces
from .cacheside import Answer, CacheRequest, Compute, EngineLoad, LoadUpTo, Pass, Step, Wait
from .records import record_of
from .spaces import Space, Spaces

__all__ = ["Executor", "Ferry"]

_KEPT_RECORDS = 20_000


class Executor(Protocol):
    """Carries out commands; answers through the callable that it was made with."""

    def submit(self, commands: Sequence[Command]) -> None:
        """Start these commands; returns at once."""

    def close(self) -> None:
        """Answer for what is in flight, and end."""


@dataclass(slots=True)
class _Seen:
    """What the engine's steps said of one request."""

    request: CacheRequest
    data_class: str
    arrival_wall_seconds: float
    computed_tokens: int = 0
    prefill_seconds: float = 0.0
    decided_at: float | None = None
    """When the cache first said what to do."""
    chosen_at: float | None = None
    """When the cache said to compute."""
    dispatch_seconds: float = 0.0


class Ferry:
    """A `CacheSide`, and the run-time `Controls` of the replica it belongs to."""

    def __init__(
        self,
        *,
        config: Config,
        cache: Cache,
        shelf: Shelf,
        spaces: Spaces,
        executor: Callable[[Callable[[Completion], None]], Executor],
        clock: Clock,
        metrics: Metrics,
        replica: str,
        chunk_tokens: int,
        sink: Callable[[DecisionRecord], None] | None,
        traces: Traces | None = None,
        on_close: Callable[[Cache], None] | None = None,
        close_shelf: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._shelf = shelf
        self._spaces = spaces
        self._clock = clock
        self._metrics = metrics
        self._replica = replica
        self._chunk_tokens = chunk_tokens
        self._sink = sink
        self._traces = traces or Traces()
        self._broken: str | None = None
        self._on_close = on_close
        self._close_shelf = close_shelf or shelf.close
        self._lock = threading.RLock()
        self._done: deque[Completion] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._seen: dict[str, _Seen] = {}
        self._records: deque[DecisionRecord] = deque(maxlen=_KEPT_RECORDS)
        self._recorded = 0
        self._published_bytes = 0
        self._read_bytes = 0
        self._executor = executor(self._deliver)

    # -- the cache side: called on the engine's thread ---------------------------------------------------

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def arrive(self, request: CacheRequest, *, barred: str = "") -> None:
        """See `CacheSide`; `barred` is why the engine does not let this request use the cache."""
        fields = request.fields
        data_class = fields.data_class or self._config.data_class
        if barred:
            space = Space(barred=Outcome.NOT_CACHEABLE, why=barred)
        else:
            space = self._spaces.of(data_class, request.adapter, request.hashes)
        with self._lock:
            now, wall = self._clock.now(), self._clock.wall()
            self._seen[request.rid] = _Seen(request, data_class, wall)
            self._traces.arrived(request.rid, now, wall, request.prompt_tokens)
            self._cache.arrive(
                now,
                request.rid,
                space.keys,
                request.prompt_tokens,
                hashes=request.hashes,
                namespace=space.digest,
                boundary_tokens=fields.boundary_tokens,
                data_class=data_class,
                max_load_tokens=fields.max_load_tokens,
                deadline_seconds=fields.deadline_seconds,
                handoff_tokens=fields.handoff_tokens,
                gives=fields.gives,
                barred=space.barred,
                barred_why=space.why,
            )
            self._flush()

    def ask(self, rid: str, local_tokens: int, load: EngineLoad) -> Answer:
        with self._lock:
            now = self._clock.now()
            answer = self._cache.ask(
                now,
                rid,
                local_tokens,
                chunk_tokens=self._chunk_tokens,
                queued_tokens=load.prefill_tokens_ahead,
                running_requests=load.decoding_requests,
                free_blocks=load.free_blocks,
            )
            if isinstance(answer, CacheWait):
                return Wait()
            seen = self._seen[rid]
            if seen.decided_at is None:
                seen.decided_at = now
            if isinstance(answer, LoadTo):
                return LoadUpTo(answer.end_block)
            if seen.chosen_at is None:
                seen.chosen_at = now
            return Compute()

    def begin(self, rid: str, end_block: int, memory: BlockMemory) -> None:
        with self._lock:
            self._cache.begin(self._clock.now(), rid, end_block, memory)
            self._flush()

    def decides(self, rid: str) -> bool:
        """Whether the next `ask` weighs the facts, and does not only repeat what is settled or still open."""
        with self._lock:
            return self._cache.decides(rid)

    def give_up(self, rid: str) -> None:
        """There is no memory for the load that was chosen, or it does not fit any more."""
        with self._lock:
            self._cache.begin(self._clock.now(), rid, 0, None)
            self._flush()

    def publishable(self, rid: str) -> int:
        """How many leading blocks of a request are to be published once they are computed."""
        with self._lock:
            return self._cache.publishable(rid)

    def passed_over(self, rid: str) -> tuple[int, int] | None:
        """Tier and number of the first block that a tier held and that was computed all the same."""
        with self._lock:
            return self._cache.passed_over(rid)

    def news(self) -> Sequence[News]:
        with self._lock:
            now = self._clock.now()
            while self._done:
                done = self._done.popleft()
                self._count(done)
                self._traces.answered(now, done)
                self._cache.receive(now, done)
            self._cache.tick(now)
            self._flush()
            return self._cache.take_news()

    def step(self, step: Step) -> None:
        if step.kind == "decode":
            self.passed(Pass(step.seconds, (), 1))
        else:
            self.passed(Pass(step.seconds, ((step.rid, step.tokens, step.context),), 0))

    def passed(self, timed: Pass) -> None:
        """A timing of a pass over several requests; its seconds are shared out by tokens."""
        tokens = sum(count for _, count, _ in timed.prefills)
        kind = StepKind.PREFILL if tokens else StepKind.DECODE
        self._metrics.step(kind, tokens or timed.decodes, timed.seconds)
        with self._lock:
            estimates = self._cache.estimates
            if not tokens:
                estimates.decode_step(timed.seconds)
                return
            # One prompt with the same attention work as all of them: sum of n (context + n / 2).
            work = sum(count * (context + count / 2) for _, count, context in timed.prefills)
            estimates.prefill_step(tokens, max(0, round(work / tokens - tokens / 2)), timed.seconds)
            began = self._clock.now() - timed.seconds
            for rid, count, _ in timed.prefills:
                seen = self._seen.get(rid)
                if seen is None:
                    continue
                if seen.computed_tokens == 0 and seen.chosen_at is not None:
                    seen.dispatch_seconds = max(0.0, began - seen.chosen_at)
                seen.computed_tokens += count
                seen.prefill_seconds += timed.seconds * count / tokens

    def computed(self, rid: str, tokens: int, clean: bool, source: BlockMemory) -> bool:
        with self._lock:
            lent = self._cache.computed(self._clock.now(), rid, tokens, clean=clean, source=source)
            self._flush()
            return lent

    def finish(self, rid: str, aborted: bool, ttft_seconds: float | None) -> dict[str, Any] | None:
        with self._lock:
            seen = self._seen.pop(rid)
            ending = Ending(
                aborted, seen.computed_tokens, seen.prefill_seconds, seen.dispatch_seconds, ttft_seconds
            )
            now = self._clock.now()
            account = self._cache.finish(now, rid, ending)
            self._traces.settled(now, account, seen.decided_at)
            self._flush()
            record = record_of(
                account,
                replica=self._replica,
                arrival_wall_seconds=seen.arrival_wall_seconds,
                data_class=seen.data_class,
                block_tokens=self._cache.settings.block_tokens,
                bytes_per_token=self._cache.settings.bytes_per_token,
                kinds=self._shelf.kinds,
                fields=seen.request.fields,
                ttft_seconds=ttft_seconds,
            )
            self._records.append(record)
            self._recorded += 1
        record_account(self._metrics, account, self._shelf.kinds)
        if self._sink is not None:
            self._sink(record)
        answer: dict[str, Any] = msgspec.to_builtins(record)
        return answer

    def next_deadline(self) -> float | None:
        with self._lock:
            return self._cache.next_deadline()

    def broke(self, cause: str) -> None:
        self._broken = cause
        self._metrics.failed(Part.CACHE)

    def close(self) -> None:
        self._spaces.close()
        self._executor.close()
        with self._lock:
            if self._on_close is not None:
                self._on_close(self._cache)
                self._on_close = None
        self._close_shelf()

    # -- the controls: called on the server's threads ----------------------------------------------------

    def settings(self) -> Mapping[str, Any]:
        link = self._shelf.link
        with self._lock:
            estimates, budget = self._cache.estimates, self._cache.flights.budget
            a, b, c = estimates.prefill.coefficients
            values: dict[str, Any] = {
                "gate.mode": self._cache.mode,
                "gate.policy": self._cache.terms.policy,
                "pool.bytes_per_second": None if link is None else link.bytes_per_second,
                "state": {
                    "broken": self._broken,
                    "published_bytes": self._published_bytes,
                    "read_bytes": self._read_bytes,
                    "pool": None if self._shelf.pool is None else self._shelf.pool.state.value,
                    "namespaces": self._spaces.standing(),
                    "loads_in_flight": budget.in_flight,
                    "load_cap": budget.cap,
                    "prefill": {"a": a, "b": b, "c": c, "observations": estimates.prefill.n},
                    "legs": [
                        {
                            "tier": kind.value,
                            "setup_seconds": leg.coefficients[0],
                            "bytes_per_second": leg.bytes_per_second if leg.coefficients[1] > 0 else None,
                            "spread_p95": leg.spread.quantile(0.95),
                            "observations": leg.n,
                        }
                        for kind, leg in zip(self._shelf.kinds, estimates.legs, strict=True)
                    ],
                },
            }
        return values

    def change(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        checked = {name: self._check(name, value) for name, value in changes.items()}
        with self._lock:
            self._cache.switch(mode=checked.get("gate.mode"), policy=checked.get("gate.policy"))
            if "pool.bytes_per_second" in checked and self._shelf.link is not None:
                self._shelf.link.bytes_per_second = checked["pool.bytes_per_second"]
        return self.settings()

    @property
    def link_rate(self) -> float | None:
        """What an experiment allows the pool's link, in bytes a second."""
        return None if self._shelf.link is None else self._shelf.link.bytes_per_second

    def decisions(self, since: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        with self._lock:
            first = self._recorded - len(self._records)
            wanted = list(self._records)[max(0, since - first) :]
            following = self._recorded
        return [msgspec.to_builtins(record) for record in wanted], following

    def metrics(self) -> bytes:
        """The text of all metrics. What has a value at any time, and no event, is asked for here."""
        with self._lock:
            broken, budget = self._broken is not None, self._cache.flights.budget
            self._metrics.mode(Mode.OFF if broken else Mode(self._cache.mode))
            self._metrics.saving(self._cache.trial.saving())
            self._metrics.in_flight(
                loads=budget.in_flight, load_cap=budget.cap, stores=self._cache.stores_in_flight
            )
        if broken:
            record_tiers_gone(self._metrics, self._shelf.kinds)
        else:
            record_tiers(self._metrics, self._shelf.tiers, self._config.timeouts.connect)
        return self._metrics.render()

    # -- what tiers tell, on any thread ------------------------------------------------------------------

    def evicted(self, evicted: Evicted) -> None:
        """Blocks that this process has dropped from a tier."""
        self._deliver(evicted)

    # -- inside ----------------------------------------------------------------------------------------

    def _deliver(self, completion: Completion) -> None:
        self._done.append(completion)
        self._wake()

    def _count(self, done: Completion) -> None:
        if isinstance(done, StoreDone):
            self._published_bytes += done.stored_bytes
            if done.cause is Outcome.FAILED:
                self._metrics.failed(Part.STORE)
        elif isinstance(done, LoadDone):
            self._read_bytes += done.legs.bytes
            if done.cause is Outcome.FAILED:
                self._metrics.failed(Part.LOAD)
        elif isinstance(done, ProbeDone) and Status.FAILED in done.status:
            self._metrics.failed(Part.PROBE)

    def _flush(self) -> None:
        commands = self._cache.take()
        if commands:
            self._traces.sent(self._clock.now(), commands)
            self._executor.submit(commands)

    def _check(self, name: str, value: Any) -> Any:
        allowed = {
            "gate.mode": ("off", "shadow", "canary", "on"),
            "gate.policy": ("rule", "always", "never"),
        }
        if name in allowed:
            if value not in allowed[name]:
                raise InputError(f"{name}: {value!r} is not one of {', '.join(allowed[name])}")
            return value
        if name == "pool.bytes_per_second":
            if self._shelf.link is None:
                raise InputError(f"{name}: this replica has no pool")
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise InputError(f"{name}: {value!r} is not a rate; write bytes per second, or null for none")
            return value
        raise InputError(
            f"{name!r} cannot be switched; known are {', '.join((*allowed, 'pool.bytes_per_second'))}"
        )
