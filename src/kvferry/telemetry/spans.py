"""Spans for OpenTelemetry: steps of a request, handed over with their times.

Owns the hook and its silent form. Steps are recorded after they ended, since the cache learns of them as
completions and nothing stays open while it waits; only what they belong to may be opened first. Where traces
go is set up by the application.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..errors import MissingExtra
from .names import Span, SpanKey

__all__ = ["Attributes", "OpenSpan", "OpenTelemetrySpans", "Spans", "open_spans"]

Attributes = Mapping[SpanKey, str | int | float]


class OpenSpan:
    """A span that has begun. The silent form of it, and the call that every one takes."""

    def end(self, wall_seconds: float, attributes: Attributes | None = None) -> None:
        """It ended at `wall_seconds` since the epoch. Others may still become its children."""


class Spans:
    """The silent hook, and the calls that every hook takes. Times are seconds since the epoch."""

    def begin(self, span: Span, start_wall_seconds: float, attributes: Attributes | None = None) -> OpenSpan:
        """Open a trace: the span that later ones belong to."""
        return OpenSpan()

    def record(
        self,
        span: Span,
        start_wall_seconds: float,
        seconds: float,
        attributes: Attributes | None = None,
        *,
        parent: OpenSpan | None = None,
    ) -> None:
        """A step that began at `start_wall_seconds` and took `seconds`; `parent` comes from `begin`."""


class _Opened(OpenSpan):
    def __init__(self, span: Any, context: Any) -> None:
        self._span = span
        self.context = context

    def end(self, wall_seconds: float, attributes: Attributes | None = None) -> None:
        self._span.set_attributes(_plain(attributes))
        self._span.end(end_time=_ns(wall_seconds))


class OpenTelemetrySpans(Spans):
    """Hands each step to the tracer provider that the application has set."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def begin(self, span: Span, start_wall_seconds: float, attributes: Attributes | None = None) -> OpenSpan:
        opened = self._tracer.start_span(
            span.value, start_time=_ns(start_wall_seconds), attributes=_plain(attributes)
        )
        trace = importlib.import_module("opentelemetry.trace")
        return _Opened(opened, trace.set_span_in_context(opened))

    def record(
        self,
        span: Span,
        start_wall_seconds: float,
        seconds: float,
        attributes: Attributes | None = None,
        *,
        parent: OpenSpan | None = None,
    ) -> None:
        start = _ns(start_wall_seconds)
        context = parent.context if isinstance(parent, _Opened) else None
        self._tracer.start_span(
            span.value, start_time=start, attributes=_plain(attributes), context=context
        ).end(end_time=start + _ns(seconds))


def open_spans(*, required: bool) -> Spans:
    """A hook to OpenTelemetry.

    With `required`, raises `MissingExtra` where its API is not installed; without, the caller gets the
    silent hook there.
    """
    try:
        trace = importlib.import_module("opentelemetry.trace")
    except ModuleNotFoundError:
        if required:
            raise MissingExtra("recording spans", "telemetry") from None
        return Spans()
    return OpenTelemetrySpans(trace.get_tracer("kvferry"))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _plain(attributes: Attributes | None) -> dict[str, str | int | float]:
    """Plain strings: exporters look at the exact type of names and keys."""
    return {key.value: value for key, value in (attributes or {}).items()}
