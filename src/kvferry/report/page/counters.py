"""What vLLM servers counted themselves, beside each other; and figures whose meaning a page does not know.

Owns two tables of many rows, which stand behind a line that opens them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runs.vllm_demo_summary import VllmDemoSummary
from ...units import counted
from .content import Section, Table

__all__ = ["figures_section", "metrics_section"]

_MOST_ROWS = 24
"""Rows that a table may have in the open."""


def metrics_section(vllm: VllmDemoSummary | None) -> Section | None:
    """The counters of every server's /metrics at the end; None without any."""
    if vllm is None or not any(vllm.metrics.values()):
        return None
    names = sorted({name for found in vllm.metrics.values() for name in found})
    servers = tuple(vllm.metrics)
    rows = tuple(
        (name, *(f"{found[name]:,.6g}" if name in found else "–" for found in vllm.metrics.values()))
        for name in names
    )
    return Section(
        name="metrics",
        title="What the servers' /metrics say",
        lead=f"{counted(len(names), 'counter')} of {counted(len(servers), 'server')} at the end of the run.",
        more=Table(("counter", *servers), rows, frozenset(range(1, len(servers) + 1))),
        half=True,
    )


def figures_section(summary: Mapping[str, Any] | None) -> Section | None:
    """The numbers of a summary that is no demo's."""
    rows: list[tuple[str, str]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else str(key), inner)
        elif not isinstance(value, list):
            rows.append((name, f"{value:.6g}" if isinstance(value, float) else str(value)))

    walk("", summary or {})
    if not rows:
        return None
    table = Table(("figure", "value"), tuple(rows), frozenset({1}))
    if len(rows) > _MOST_ROWS:
        return Section(name="summary", title="Summary", lead="All figures of summary.json.", more=table)
    return Section(name="summary", title="Summary", table=table)
