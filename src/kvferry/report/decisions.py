"""One decision as a row of a table: what was on offer, what was predicted, what was chosen, what happened."""

from __future__ import annotations

from ..runs.decisions import DecisionRecord
from ..units import format_bytes

__all__ = ["DECISION_COLUMNS", "decision_row", "seconds"]

DECISION_COLUMNS = (
    "request",
    "on offer",
    "bytes",
    "load p50",
    "load p95",
    "recompute",
    "chosen",
    "reason",
    "actual",
    "lost",
)


def seconds(value: float | None) -> str:
    """A time in the unit that reads best; a dash where there is none."""
    if value is None:
        return "-"
    if value < 1.0:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"
    return f"{value:.2f} s"


def decision_row(record: DecisionRecord) -> tuple[str, ...]:
    """Cells for `DECISION_COLUMNS`; of requests for which nothing was on offer, most are dashes."""
    decision = record.decision
    if decision is None or decision.candidate_bytes == 0:
        why = record.fallback.value if record.fallback is not None else record.path.replace("_", " ")
        ready = seconds(record.actual.ready_seconds)
        return (record.request_id, "0", "-", "-", "-", "-", "compute", why, ready, _lost(record))
    tokens = decision.candidate_bytes // record.bytes_per_token
    actual = record.actual.load_seconds if decision.loads else record.actual.recompute_seconds
    chosen = "load" if decision.loads else "compute"
    if record.fallback is not None and decision.loads:
        chosen = f"load, {record.fallback.value}"
    return (
        record.request_id,
        str(tokens),
        format_bytes(decision.candidate_bytes),
        seconds(decision.load_median_seconds),
        seconds(decision.load_high_seconds),
        seconds(decision.recompute_seconds),
        chosen,
        decision.reason.value.replace("_", " "),
        seconds(actual),
        _lost(record),
    )


def _lost(record: DecisionRecord) -> str:
    return seconds(record.lost_seconds) if record.lost_seconds > 0.0 else ""
