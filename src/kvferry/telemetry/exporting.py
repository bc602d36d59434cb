"""Sends the spans of a process to a collector, where the process is kvferry's own.

Owns the choice of a tracer provider for a command of kvferry. An application that has set one, or runs under
`opentelemetry-instrument`, keeps it. Endpoint, sampling, batches and the service's name are read by the SDK
from its OTEL_ variables; nothing here knows them.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from ..errors import ConfigError, MissingExtra

__all__ = ["send_spans"]

_GROUP = "opentelemetry_traces_exporter"
_EXPORTERS = ("otlp", "otlp_proto_http", "otlp_proto_grpc")


def send_spans() -> None:
    """Set up the SDK with the installed OTLP exporter, unless a tracer provider is set.

    Raises MissingExtra without the SDK and ConfigError without an exporter.
    """
    try:
        trace = importlib.import_module("opentelemetry.trace")
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
    except ModuleNotFoundError:
        raise MissingExtra("spans: sending them", "telemetry") from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    installed = {point.name: point for point in entry_points(group=_GROUP)}
    point = next((installed[name] for name in _EXPORTERS if name in installed), None)
    if point is None:
        raise ConfigError(
            "spans: no exporter is installed to send them; "
            "pip install opentelemetry-exporter-otlp-proto-http, or write spans: false"
        )
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.BatchSpanProcessor(point.load()()))
    trace.set_tracer_provider(provider)
