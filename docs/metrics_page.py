"""The page of metrics, from `telemetry/names.py`."""

from __future__ import annotations

from kvferry.telemetry.names import LABEL_VALUES, METRICS, Metric, Span, SpanKey

__all__ = ["metrics_page"]

_HEAD = """# Metrics

*Written by `make docs` from `src/kvferry/telemetry/names.py`; change it there.*

Every replica answers `GET /metrics` in Prometheus' text format. [deploy/](../deploy) holds a scrape
configuration, alert rules and a dashboard that use these names, and [runbooks/](runbooks) says what to do
when a rule fires.

- Counters count events, tokens, seconds or bytes, never a rate. There is no hit rate: the three kinds of
  reuse (a replica's own prefix cache, shared tiers, a hand-off) have outcomes of their own, and a share is a
  query over two counters with one denominator.
- Labels have few and known values. A tenant, a request or a namespace is never one.
- A histogram `NAME` is scraped as `NAME_bucket`, `NAME_sum` and `NAME_count`.
- Counters belong to one process and begin at zero with it. What a tier holds (`kvferry_tier_*`) is asked for
  when somebody scrapes: of a shared pool every replica reports the same, so take `max`, not `sum`.
- `kvferry_never_read_bytes_total` knows what this process has evicted itself. A Valkey server evicts without
  telling anybody: for such a pool compare published with read bytes.

| metric | kind | labels | what it says |
|---|---|---|---|
"""

_SPANS = """
## Spans

With `spans: true` a replica hands every request to OpenTelemetry as one trace. `kvferry replica` sends them
with the OTLP exporter that is installed (`pip install opentelemetry-exporter-otlp-proto-http`), unless a
tracer provider has been set, as `opentelemetry-instrument` does. Where to, under which service name and which
share is read by the SDK: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`.

"""
_SPAN_TEXTS = {
    Span.REQUEST: "from arrival to a ready prompt; the others are its children, and a store may end after it",
    Span.LOOKUP: "which blocks the tiers hold",
    Span.GATE: "from the look-up's answer to the decision: waiting for a slot or for another's load included",
    Span.LOAD: "reading one run of blocks from one tier, with its time in the queue",
    Span.STORE: "publishing one run of blocks",
}


def metrics_page() -> str:
    """Markdown: metrics, labels with their values, spans."""
    lines = [_row(metric) for metric in METRICS]
    lines += ["", "## Labels", "", "| label | values |", "|---|---|"]
    for label, values in LABEL_VALUES.items():
        lines.append(f"| `{label}` | {', '.join(f'`{value}`' for value in values)} |")
    spans = [f"- `{span}`: {_SPAN_TEXTS[span]}" for span in Span]
    keys = ", ".join(f"`{key}`" for key in SpanKey)
    return _HEAD + "\n".join(lines) + "\n" + _SPANS + "\n".join(spans) + f"\n\nAttributes: {keys}.\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
