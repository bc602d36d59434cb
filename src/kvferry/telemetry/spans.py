"""Spans for OpenTelemetry: finished steps of a request, handed over with their times.

Owns the hook and its silent form. Steps are recorded after they ended, since the cache learns of them as
completions and nothing stays open while it waits. Where traces go is set up by the application.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..errors import MissingExtra
from .names import Span, SpanKey

__all__ = ["OpenTelemetrySpans", "Spans", "open_spans"]

Attributes = Mapping[SpanKey, str | int | float]


class Spans:
    """The silent hook, and the call that every hook takes."""

    def record(
        self, span: Span, start_wall_seconds: float, seconds: float, attributes: Attributes | None = None
    ) -> None:
        """A step that began at `start_wall_seconds` since the epoch and took `seconds`."""


class OpenTelemetrySpans(Spans):
    """Hands each step to the tracer provider that the application has set."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def record(
        self, span: Span, start_wall_seconds: float, seconds: float, attributes: Attributes | None = None
    ) -> None:
        start = int(start_wall_seconds * 1e9)
        # Plain strings: exporters look at the exact type of names and keys.
        plain = {key.value: value for key, value in (attributes or {}).items()}
        self._tracer.start_span(span.value, start_time=start, attributes=plain).end(
            end_time=start + int(seconds * 1e9)
        )


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
