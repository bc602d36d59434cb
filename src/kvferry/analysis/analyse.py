"""From a trace to a result, chunk by chunk, in one pass.

Owns the order of the work and which question needs what. Every count is its own; this only feeds them. Memory
grows with different blocks (and, with Belady's bound, with the trace). Opens no file: a trace is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..traces.chunk import Trace
from ..units import counted
from .advice import recommend
from .classes import ClassCount
from .flows import FlowCount
from .hits import HitCount
from .policies import Simulated, simulate
from .replicas import ROUTINGS
from .result import (
    Analysis,
    Capacity,
    CurvePoint,
    Mark,
    PolicyPoint,
    ProblemLine,
    SampledCurve,
    TraceProblems,
)
from .reuse import Curve, Stack
from .routing import RoutingCount
from .sampled import Sample
from .touched import touch

__all__ = ["ROOT", "Question", "analyse", "analyse_counted"]

ROOT = "root"
_Labels = npt.NDArray[np.int32]
_POINTS = 96
_ENOUGH = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a trace. Sizes are in tokens; with `bytes_per_token` the result has bytes as well."""

    bytes_per_token: float | None = None
    model: str | None = None
    replicas: int = 1
    capacity_tokens: int | None = None
    """Of one replica's cache; None: no limit."""
    capacity: Capacity | None = None
    """How it came about, for the record."""
    pool_tokens: int | None = None
    """Of the shared pool; None: as much as all replicas together."""
    class_field: str = ROOT
    root_blocks: int = 1
    """Prompts that share so many blocks from the front are of one class."""
    window_seconds: float = 900.0
    policies: tuple[str, ...] = ()
    sample_rate: float = 0.1
    """Share of the blocks that the sampled curve sees."""
    storage_nodes: int = 4
    warm_seconds: float = 60.0
    seed: int = 0
    compiled: bool | None = None
    """None: where numba is installed."""


def analyse(trace: Trace, question: Question) -> Analysis:
    """Everything that the trace says.

    Raises `FormatError` for what it holds, and `UsageError` for what is asked of it.
    """
    return analyse_counted(trace, question)[0]


def analyse_counted(trace: Trace, question: Question) -> tuple[Analysis, HitCount]:
    """The same, and the sums behind its hit ratios, which add up over traces that share nothing."""
    work = _Analysis(trace, question)
    return work.run(), work.hits


class _Analysis:
    def __init__(self, trace: Trace, question: Question) -> None:
        self.trace = trace
        self.question = question
        self.size = max(1, trace.block_tokens)
        self.capacity = self._blocks(question.capacity_tokens, "capacity")
        self.pool = self._blocks(question.pool_tokens, "pool")
        if self.pool is None and self.capacity is not None:
            self.pool = self.capacity * question.replicas
        if question.class_field != ROOT and not question.class_field:
            raise UsageError("--by: name a field of the trace, or root")
        self.stack = Stack(compiled=question.compiled)
        self.curve = Curve(self.size)
        self.hits = HitCount()
        self.classes = ClassCount(question.root_blocks)
        self.flows = FlowCount()
        self.routing = RoutingCount(
            question.replicas,
            self.capacity,
            self.pool,
            self.size,
            routings=ROUTINGS if question.replicas > 1 else ("round-robin",),
            seed=question.seed,
            compiled=question.compiled,
        )
        self.sample = Sample(question.sample_rate, compiled=question.compiled)
        self.simulated: list[tuple[str, Simulated]] = []
        if question.policies:
            if self.capacity is None:
                raise UsageError("--policies: say --capacity, so that there is something to evict")
            rooms = sorted({self.capacity, self.pool or self.capacity})
            self.simulated = [(name, simulate(name, room)) for room in rooms for name in question.policies]
        self.requests = self.input_tokens = self.output_tokens = 0
        self.span = 0.0
        self.field_seen = False

    def run(self) -> Analysis:
        for chunk in self.trace.chunks():
            if not len(chunk):
                continue
            self.requests += len(chunk)
            self.input_tokens += int(chunk.input_tokens.sum())
            self.output_tokens += int(chunk.output_tokens.sum())
            self.span = float(chunk.arrival_seconds[-1])
            if not self.trace.has_blocks:
                continue
            touched = touch(chunk, self.stack, self.size, self.requests - len(chunk))
            self.hits.add(touched)
            self.curve.add(touched.depth, touched.tokens, touched.full)
            classes = self.classes.add(touched, self._field(chunk.fields, len(chunk)), self.stack.unique)
            self.flows.add(touched)
            self.routing.add(touched, classes)
            self.sample.add(touched)
            for _, cache in self.simulated:
                cache.add(touched)
        for _, cache in self.simulated:
            cache.finish()
        if self.question.class_field != ROOT and self.trace.has_blocks and not self.field_seen:
            known = ", ".join(sorted(self.trace.labels)) or "none"
            raise UsageError(
                f"--by {self.question.class_field}: no request has this field; the trace has {known}; "
                "leave --by away for the roots of the block tree"
            )
        return self._result()

    def _blocks(self, tokens: int | None, name: str) -> int | None:
        if tokens is None:
            return None
        if tokens < self.size:
            raise UsageError(f"{name}: {counted(tokens, 'token')} hold no block of {self.size}; give more")
        return tokens // self.size

    def _field(self, fields: Mapping[str, _Labels], count: int) -> _Labels | None:
        name = self.question.class_field
        if name == ROOT:
            return None
        found = fields.get(name)
        if found is None:
            return np.full(count, -1, dtype=np.int32)
        self.field_seen = True
        return found

    def _bytes(self, tokens: int | None) -> int | None:
        weight = self.question.bytes_per_token
        return None if weight is None or tokens is None else round(tokens * weight)

    def _result(self) -> Analysis:
        question, trace = self.question, self.trace
        known = trace.has_blocks and self.requests > 0
        problems = TraceProblems(
            rows=trace.problems.count,
            first=tuple(ProblemLine(line=one.line, message=one.message) for one in trace.problems.first),
        )
        labels = None if question.class_field == ROOT else trace.labels.get(question.class_field, [])
        several = question.replicas > 1
        routing = self.routing.results() if known else {}
        best = self.routing.best if known else None
        classes = (
            self.classes.results(self.stack.uses, labels, self.size, self.routing.sharing()) if known else ()
        )
        hit = self.hits.ratios() if known else None
        misses = routing[best].misses if best is not None else None
        gain = self.routing.pool_gain(question.bytes_per_token) if known and several else None
        points = self._points() if known else ()
        weight = question.bytes_per_token
        unique_tokens = self.classes.unique_tokens
        flows = worst = None
        if known and weight is not None:
            worst = self.flows.worst(question.window_seconds, weight)
            flows = self.flows.flows(
                window_seconds=question.window_seconds,
                bytes_per_token=weight,
                replicas=question.replicas,
                storage_nodes=question.storage_nodes,
                unique_tokens=unique_tokens,
                hot_tokens=self._hot_blocks() * self.size,
                warm_seconds=question.warm_seconds,
            )
        return Analysis(
            path=trace.path,
            format=trace.format,
            block_tokens=trace.block_tokens,
            bytes_per_token=weight,
            model=question.model,
            replicas=question.replicas,
            requests=self.requests,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            span_seconds=self.span,
            blocks=self.hits.blocks,
            unique_blocks=self.stack.unique,
            unique_tokens=unique_tokens,
            unique_bytes=self._bytes(unique_tokens),
            problems=problems,
            cannot=tuple(self._cannot()),
            hit=hit,
            curve=points,
            sampled=self._sampled(points) if known else None,
            policies=tuple(self._policy_points()) if known else (),
            marks=tuple(self._marks()) if known else (),
            capacity=question.capacity,
            intervals=self.classes.intervals.bins(),
            misses=misses,
            misses_routing=best if several else None,
            routing=routing if several else {},
            pool_gain=gain,
            worst_window=worst,
            flows=flows,
            class_field=question.class_field,
            classes=classes,
            recommendation=recommend(
                path=trace.path,
                format=trace.format,
                has_blocks=trace.has_blocks,
                problems=problems,
                requests=self.requests,
                hit=hit,
                misses=misses,
                routing=best if several else None,
                gain=gain,
                enough_tokens=self.curve.enough(_ENOUGH) * self.size if known else None,
                block_tokens=self.size,
                classes=classes,
            ),
        )

    def _points(self) -> tuple[CurvePoint, ...]:
        hits, useful = self.curve.cumulated()
        deepest = len(hits) - 1
        rooms = {max(1, round(room)) for room in np.geomspace(1, max(1, self.stack.unique), _POINTS).tolist()}
        rooms |= {room for room in (self.capacity, self.pool) if room is not None}
        whole = max(1, self.input_tokens)
        return tuple(
            CurvePoint(
                capacity_bytes=self._bytes(room * self.size),
                capacity_tokens=room * self.size,
                hit_by_token=int(hits[min(room, deepest)]) / whole,
                hit_useful_tokens=int(useful[min(room, deepest)]) / whole,
            )
            for room in sorted(rooms)
        )

    def _sampled(self, exact: tuple[CurvePoint, ...]) -> SampledCurve:
        points, errors = [], []
        for point in exact:
            by_token, useful = self.sample.hit_ratios(point.capacity_tokens // self.size, self.input_tokens)
            errors.append(abs(by_token - point.hit_by_token))
            points.append(
                CurvePoint(
                    capacity_bytes=point.capacity_bytes,
                    capacity_tokens=point.capacity_tokens,
                    hit_by_token=by_token,
                    hit_useful_tokens=useful,
                )
            )
        return SampledCurve(
            rate=self.sample.rate,
            sampled_blocks=self.sample.blocks,
            mean_error=sum(errors) / len(errors),
            worst_error=max(errors),
            points=tuple(points),
        )

    def _policy_points(self) -> list[PolicyPoint]:
        whole = max(1, self.input_tokens)
        return [
            PolicyPoint(
                policy=name,
                capacity_bytes=self._bytes(cache.capacity_blocks * self.size),
                capacity_tokens=cache.capacity_blocks * self.size,
                hit_by_token=cache.hit_tokens / whole,
                hit_useful_tokens=cache.useful_tokens / whole,
            )
            for name, cache in self.simulated
        ]

    def _marks(self) -> list[Mark]:
        rooms: list[tuple[str, int | None]] = [("one replica", self.capacity)]
        if self.question.replicas > 1 or self.question.pool_tokens is not None:
            rooms.append(("shared pool", self.pool))
        rooms.append(("90 % of all hits", self.curve.enough(_ENOUGH) or None))
        whole = max(1, self.input_tokens)
        return [
            Mark(
                name=name,
                capacity_bytes=self._bytes(room * self.size),
                capacity_tokens=room * self.size,
                hit_by_token=self.curve.hit_tokens(room) / whole,
            )
            for name, room in rooms
            if room is not None
        ]

    def _hot_blocks(self) -> int:
        """The fewest blocks that take half of all reuses."""
        again = np.sort(self.stack.uses[: self.stack.unique].astype(np.int64) - 1)[::-1]
        total = np.cumsum(again)
        return int(np.searchsorted(total, total[-1] / 2)) + 1 if len(total) and total[-1] > 0 else 0

    def _cannot(self) -> list[str]:
        found = list(self.trace.caveats)
        if not self.trace.has_blocks and not found:
            found.append("hits, curve, misses, classes and flows: the trace holds lengths only, no blocks")
        if self.trace.has_blocks and self.question.bytes_per_token is None:
            found.append("bytes and flows: say --bytes-per-token or --model")
        if self.trace.has_blocks and self.question.replicas == 1:
            found.append("placement and routing: say --replicas")
        if self.trace.has_blocks and self.capacity is None:
            found.append("evicted: caches have no limit here; say --capacity")
        return found
