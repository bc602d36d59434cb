"""Requests as traces, through OpenTelemetry's own SDK and its in-memory exporter."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvferry.cache.account import Account, LoadedRun
from kvferry.cache.commands import (
    Cancel,
    Evicted,
    Legs,
    Load,
    LoadDone,
    Probe,
    ProbeDone,
    Status,
    Store,
    StoreDone,
)
from kvferry.gate.facts import Arm, Decision, GateTerms, Reason
from kvferry.outcomes import Outcome
from kvferry.store.tier import Kind
from kvferry.telemetry.spans import OpenTelemetrySpans
from kvferry.telemetry.traces import RecordedTraces, Traces

WALL = 1_700_000_000.0
KEYS = [bytes([n]) * 32 for n in range(4)]
PROBE = Probe(1, "r", KEYS, None, 0, 4, 0.25)
LOAD = Load(2, "r", 1, KEYS, 0, 3, None, 5.0)  # type: ignore[arg-type]  # no memory is touched here
STORE = Store(3, "r", KEYS, 3, 4, None, 5.0, 5.0)  # type: ignore[arg-type]
ACCOUNT = Account(
    rid="r",
    arrived=100.0,
    arm=Arm.ON,
    mode="on",
    prompt_tokens=130,
    keys=KEYS,
    found_end=3,
    facts=None,
    terms=GateTerms(),
    decision=Decision(
        end_block=3,
        reason=Reason.PAYS,
        load_high_seconds=0.2,
        load_median_seconds=0.1,
        recompute_seconds=1.0,
        margin_seconds=0.01,
        interference_seconds=0.0,
        candidate_end_block=3,
        candidate_bytes=3000,
    ),
    ledger={},
    loads=(LoadedRun(1, 0, 3, 3, Legs()),),
    lookup_seconds=0.25,
    load_seconds=1.0,
    recompute_seconds=None,
    prefill_seconds=0.0,
    computed_tokens=34,
    ready_seconds=4.0,
    aborted=False,
    fallback=None,
    lost_seconds=0.0,
)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> RecordedTraces:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RecordedTraces(OpenTelemetrySpans(provider.get_tracer("test")), (Kind.HOST, Kind.POOL))


def play(traces: Traces) -> None:
    """Probe, decision, load, ready prompt, settled; the store is answered last of all."""
    traces.arrived("r", 100.0, WALL, 130)
    traces.sent(100.0, [PROBE])
    held = Status.TIER + 1
    traces.answered(100.5, ProbeDone(1, bytes([held, held, held, 0]), seconds=0.25))
    traces.sent(101.0, [LOAD])
    traces.answered(102.5, LoadDone(2, 3, legs=Legs(0.25, 0.75, 0.0, 3000)))
    traces.sent(104.0, [STORE])
    traces.settled(105.0, ACCOUNT, 101.0)
    traces.answered(107.0, StoreDone(3, 1, 1000, legs=Legs(0.5, 2.0, 0.0, 1000)))


@pytest.fixture
def spans(traces: RecordedTraces, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    play(traces)
    return {span.name: span for span in exporter.get_finished_spans()}


def times(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time / 1e9 - WALL, span.end_time / 1e9 - WALL


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kvferry.request", (0.0, 4.0)),
        ("kvferry.lookup", (0.0, 0.25)),
        ("kvferry.gate", (0.25, 1.0)),
        ("kvferry.load", (1.0, 2.0)),
        ("kvferry.store", (4.0, 6.5)),
    ],
)
def test_a_step_is_where_it_happened(
    spans: dict[str, ReadableSpan], name: str, expected: tuple[float, float]
) -> None:
    assert times(spans[name]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kvferry.request", {"request_id": "r", "tokens": 130, "path": "pool_hit"}),
        ("kvferry.lookup", {"blocks": 4, "found_blocks": 3}),
        ("kvferry.gate", {"choice": "load", "reason": "pays", "bytes": 3000}),
        ("kvferry.load", {"tier": "pool", "blocks": 3, "bytes": 3000}),
        ("kvferry.store", {"blocks": 1, "bytes": 1000}),
    ],
)
def test_a_step_says_what_it_did(
    spans: dict[str, ReadableSpan], name: str, expected: dict[str, object]
) -> None:
    assert spans[name].attributes == {f"kvferry.{key}": value for key, value in expected.items()}


def test_all_steps_of_a_request_are_one_trace(spans: dict[str, ReadableSpan]) -> None:
    root = spans.pop("kvferry.request")
    assert root.parent is None
    assert root.context is not None
    assert [span.parent.span_id for span in spans.values() if span.parent] == [root.context.span_id] * 4


def test_two_requests_are_two_traces(traces: RecordedTraces, exporter: InMemorySpanExporter) -> None:
    play(traces)
    play(traces)
    assert len({span.context.trace_id for span in exporter.get_finished_spans() if span.context}) == 2


def test_a_load_that_fell_short_says_why(traces: RecordedTraces, exporter: InMemorySpanExporter) -> None:
    traces.arrived("r", 100.0, WALL, 130)
    traces.sent(100.0, [LOAD])
    traces.answered(103.0, LoadDone(2, 0, Outcome.LATE))
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["kvferry.outcome"] == "late"
    assert times(span) == pytest.approx((0.0, 3.0))


def test_a_request_without_a_decision_has_no_gate(
    traces: RecordedTraces, exporter: InMemorySpanExporter
) -> None:
    traces.arrived("r", 100.0, WALL, 130)
    traces.settled(105.0, ACCOUNT, None)
    assert [span.name for span in exporter.get_finished_spans()] == ["kvferry.request"]


def test_what_is_no_step_of_a_request_is_passed_over(
    traces: RecordedTraces, exporter: InMemorySpanExporter
) -> None:
    traces.sent(100.0, [Cancel(2), LOAD])
    traces.answered(100.0, Evicted([], b""))
    traces.answered(100.0, LoadDone(2, 0))
    assert exporter.get_finished_spans() == ()


def test_nothing_is_kept_of_a_request_that_is_over(traces: RecordedTraces) -> None:
    play(traces)
    assert not traces._traces
    assert not traces._sent


def test_the_silent_follower_takes_the_same_calls() -> None:
    play(Traces())
