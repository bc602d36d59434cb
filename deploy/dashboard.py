"""Writes grafana-dashboard.json from the panels below: `python deploy/dashboard.py`.

Owns what the dashboard shows and in which order. There is no panel of one hit rate: the ledger is a stack of
every outcome, so that what is saved and why the rest was computed stand in one picture.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DASHBOARD", "dashboard"]

DASHBOARD = Path(__file__).with_name("grafana-dashboard.json")

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = '{job=~"$job", instance=~"$instance"}'


def _of(**labels: str) -> str:
    """The selector of the chosen replicas, with further labels."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    return f'{{job=~"$job", instance=~"$instance"{more}}}'


def _rate(metric: str, by: str, **labels: str) -> str:
    return f"sum by ({by}) (rate({metric}{_of(**labels)}[$__rate_interval]))"


def _quantile(q: float, histogram: str, by: str) -> str:
    return f"histogram_quantile({q}, {_rate(f'{histogram}_bucket', f'le, {by}')})"


@dataclass(frozen=True)
class Panel:
    """One picture: queries with their legends, a unit in Grafana's words, and what it tells."""

    title: str
    tells: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    stacked: bool = False
    steps: bool = False
    """A state that holds until it changes, drawn as bars over time."""
    width: int = 12
    extra: dict[str, Any] = field(default_factory=dict)


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Does it pay?",
        (
            Panel(
                "Saving against the holdout",
                "Share of recompute time that sharing saves, with its 95 % interval. All of it below zero: "
                "sharing costs. Absent until both arms have been seen 20 times.",
                [(f"kvferry_saving_ratio{_HERE}", "{{instance}} {{bound}}")],
                "percentunit",
            ),
            Panel(
                "Seconds saved and lost",
                "Per second of wall time. Saved: loads that were ready before the predicted recompute. Lost: "
                "what the other choice was predicted to save, where the choice turned out wrong.",
                [
                    (f"sum(rate(kvferry_saved_seconds_total{_HERE}[$__rate_interval]))", "saved by loads"),
                    (_rate("kvferry_lost_seconds_total", "choice"), "lost by {{choice}}"),
                ],
                "s",
            ),
            Panel(
                "Time to a ready prompt, median, by path",
                "Distributions that are never mixed: a cold prompt, a local hit, a hit in each tier, a "
                "declined load and a fallback.",
                [(_quantile(0.5, "kvferry_ready_seconds", "path"), "{{path}}")],
                "s",
            ),
            Panel(
                "Time to a ready prompt, 95th percentile, by path",
                "A fallback should not be far above a cold prompt: else loads are waited for too long.",
                [(_quantile(0.95, "kvferry_ready_seconds", "path"), "{{path}}")],
                "s",
            ),
        ),
    ),
    (
        "What became of the tokens",
        (
            Panel(
                "Prompt tokens by outcome",
                "The ledger: every prompt token once, so the height is all prompt tokens. Hits by where the "
                "KV came from, the rest by why it was computed again.",
                [(_rate("kvferry_ledger_tokens_total", "outcome"), "{{outcome}}")],
                "short",
                stacked=True,
            ),
            Panel(
                "Decisions by reason",
                "What the gate chose, and why, per second.",
                [(_rate("kvferry_decisions_total", "choice, reason"), "{{choice}}: {{reason}}")],
                "reqps",
                stacked=True,
            ),
            Panel(
                "Requests by path",
                "How prompts became ready, per second.",
                [(_rate("kvferry_ready_seconds_count", "path"), "{{path}}")],
                "reqps",
                stacked=True,
            ),
            Panel(
                "Fallbacks and failures",
                "Requests that the cache could not help although it was asked, by cause; failed operations.",
                [
                    (_rate("kvferry_fallbacks_total", "outcome"), "fallback: {{outcome}}"),
                    (_rate("kvferry_failures_total", "part"), "failed {{part}}"),
                ],
                "reqps",
            ),
        ),
    ),
    (
        "Tiers",
        (
            Panel(
                "Bytes read, published and dropped unread",
                "What the pool moves, and what was published for nobody.",
                [
                    (_rate("kvferry_read_bytes_total", "tier"), "{{tier}} read"),
                    (_rate("kvferry_published_bytes_total", "tier"), "{{tier}} published"),
                    (_rate("kvferry_never_read_bytes_total", "tier"), "{{tier}} dropped unread"),
                ],
                "Bps",
            ),
            Panel(
                "Blocks asked for and found",
                "Two counters and no rate of hits: their distance is what the tiers did not hold.",
                [
                    (_rate("kvferry_probed_blocks_total", "tier"), "{{tier}} asked"),
                    (_rate("kvferry_found_blocks_total", "tier"), "{{tier}} found"),
                ],
                "short",
            ),
            Panel(
                "Seconds of one batch of reads",
                "Median and 95th percentile, by tier.",
                [
                    (_quantile(0.5, "kvferry_load_seconds", "tier"), "{{tier}} p50"),
                    (_quantile(0.95, "kvferry_load_seconds", "tier"), "{{tier}} p95"),
                ],
                "s",
                width=8,
            ),
            Panel(
                "Seconds of one batch of writes",
                "Median and 95th percentile, by tier.",
                [
                    (_quantile(0.5, "kvferry_store_seconds", "tier"), "{{tier}} p50"),
                    (_quantile(0.95, "kvferry_store_seconds", "tier"), "{{tier}} p95"),
                ],
                "s",
                width=8,
            ),
            Panel(
                "Seconds of one look-up",
                "Median and 95th percentile, by tier.",
                [
                    (_quantile(0.5, "kvferry_probe_seconds", "tier"), "{{tier}} p50"),
                    (_quantile(0.95, "kvferry_probe_seconds", "tier"), "{{tier}} p95"),
                ],
                "s",
                width=8,
            ),
            Panel(
                "Bytes of one batch",
                "Median of what one batch brought or stored, by tier.",
                [
                    (_quantile(0.5, "kvferry_load_bytes", "tier"), "{{tier}} read"),
                    (_quantile(0.5, "kvferry_store_bytes", "tier"), "{{tier}} written"),
                ],
                "bytes",
            ),
            Panel(
                "Use and capacity",
                "A shared pool is seen by every replica alike, so the largest answer counts. A tier that "
                "evicts is full most of the time, and well: see refused blocks.",
                [
                    (f"max by (tier) (kvferry_tier_used_bytes{_HERE})", "{{tier}} used"),
                    (f"max by (tier) (kvferry_tier_capacity_bytes{_HERE})", "{{tier}} capacity"),
                    (_rate("kvferry_refused_blocks_total", "tier"), "{{tier}} blocks refused per second"),
                ],
                "bytes",
                extra={
                    "overrides": [
                        {
                            "matcher": {"id": "byRegexp", "options": "/refused/"},
                            "properties": [
                                {"id": "unit", "value": "short"},
                                {"id": "custom.axisPlacement", "value": "right"},
                            ],
                        }
                    ]
                },
            ),
            Panel(
                "State of the tiers",
                "1 while calls reach the tier.",
                [(f"kvferry_tier_up{_HERE}", "{{instance}} {{tier}}")],
                steps=True,
            ),
            Panel(
                "Back-off",
                "How long a tier is still left alone after it failed.",
                [(f"kvferry_tier_backoff_seconds{_HERE}", "{{instance}} {{tier}}")],
                "s",
            ),
        ),
    ),
    (
        "Replicas",
        (
            Panel(
                "Loads in flight and their cap",
                "At the cap for long: requests wait for a slot, or compute although a load would pay.",
                [
                    (f"kvferry_loads_in_flight{_HERE}", "{{instance}} loads"),
                    (f"kvferry_load_cap{_HERE}", "{{instance}} cap"),
                    (f"kvferry_stores_in_flight{_HERE}", "{{instance}} stores"),
                ],
            ),
            Panel(
                "Mode",
                "Replicas in each mode. A replica whose cache side broke is off.",
                [(f"sum by (mode) (kvferry_mode{_HERE})", "{{mode}}")],
                stacked=True,
            ),
            Panel(
                "Seconds of one step of the engine",
                "Decode steps that grow while loads are in flight are the interference that loads cause.",
                [
                    (_quantile(0.5, "kvferry_step_seconds", "step"), "{{step}} p50"),
                    (_quantile(0.95, "kvferry_step_seconds", "step"), "{{step}} p95"),
                ],
                "s",
            ),
            Panel(
                "Prefill speed",
                "Tokens computed in a second of prefill steps, by replica: what loads have to beat.",
                [
                    (
                        f"{_rate('kvferry_computed_tokens_total', 'instance')}\n  / "
                        f"{_rate('kvferry_step_seconds_sum', 'instance', step='prefill')}",
                        "{{instance}}",
                    ),
                ],
            ),
            Panel(
                "Prompt tokens, and those that were computed",
                "Their distance is what was not computed again.",
                [
                    (f"sum(rate(kvferry_prompt_tokens_total{_HERE}[$__rate_interval]))", "asked"),
                    (f"sum(rate(kvferry_computed_tokens_total{_HERE}[$__rate_interval]))", "computed"),
                ],
                width=24,
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > 24:
                left, top = 0, top + 8
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left += panel.width
        top += 8
    return {
        "title": "kvferry",
        "uid": "kvferry",
        "description": "Whether carrying KV caches pays, what became of every prompt token, and what moves.",
        "tags": ["kvferry", "llm"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), _variable("job", ""), _variable("instance", '{job=~"$job"}')]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "state-timeline" if panel.steps else "timeseries",
        "title": panel.title,
        "description": panel.tells,
        "datasource": _SOURCE,
        "gridPos": {"h": 8, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": _drawn(panel)},
            "overrides": panel.extra.get("overrides", []),
        },
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "editorMode": "code",
                "range": True,
            }
            for i, (query, legend) in enumerate(panel.queries)
        ],
    }


def _drawn(panel: Panel) -> dict[str, Any]:
    if panel.steps:
        return {"fillOpacity": 70, "lineWidth": 0}
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    if panel.steps:
        return {"mergeValues": True, "showValue": "auto", "rowHeight": 0.8, "legend": legend}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, selector: str) -> dict[str, Any]:
    query = f"label_values(kvferry_mode{selector}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    """Write the file."""
    DASHBOARD.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
