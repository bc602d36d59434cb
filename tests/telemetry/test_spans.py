"""Spans: finished steps with their times, or silence."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.errors import MissingExtra
from kvferry.telemetry.names import Span, SpanKey
from kvferry.telemetry.spans import OpenTelemetrySpans, Spans, open_spans


class Tracer:
    """What the hook uses of OpenTelemetry's tracer."""

    def __init__(self) -> None:
        self.started: dict[str, Any] = {}
        self.ended_ns = 0

    def start_span(self, name: str, **given: Any) -> Tracer:
        self.started = {"name": name, **given}
        return self

    def end(self, *, end_time: int) -> None:
        self.ended_ns = end_time


@pytest.fixture
def tracer() -> Tracer:
    tracer = Tracer()
    attributes: dict[SpanKey, str | int | float] = {SpanKey.TIER: "pool", SpanKey.BLOCKS: 3}
    OpenTelemetrySpans(tracer).record(Span.LOAD, 1000.5, 0.25, attributes)
    return tracer


def test_a_span_begins_and_ends_when_the_step_did(tracer: Tracer) -> None:
    assert (tracer.started["start_time"], tracer.ended_ns) == (1_000_500_000_000, 1_000_750_000_000)


def test_a_span_has_its_listed_name(tracer: Tracer) -> None:
    assert tracer.started["name"] == "kvferry.load"


def test_a_span_has_its_attributes(tracer: Tracer) -> None:
    assert tracer.started["attributes"] == {"kvferry.tier": "pool", "kvferry.blocks": 3}


def test_the_silent_hook_takes_the_same_call() -> None:
    Spans().record(Span.GATE, 1000.0, 0.1)


def test_the_applications_tracer_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer()
    trace = SimpleNamespace(get_tracer=lambda name: tracer)
    monkeypatch.setattr(importlib, "import_module", lambda name: trace)
    open_spans(required=True).record(Span.LOOKUP, 0.0, 0.0)
    assert tracer.started["name"] == "kvferry.lookup"


@pytest.fixture
def _no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)


@pytest.mark.usefixtures("_no_extra")
def test_without_the_extra_required_spans_are_an_error() -> None:
    with pytest.raises(MissingExtra, match=r"pip install .*\[telemetry\]"):
        open_spans(required=True)


@pytest.mark.usefixtures("_no_extra")
def test_without_the_extra_spans_may_be_silent() -> None:
    assert type(open_spans(required=False)) is Spans
