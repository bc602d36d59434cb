"""Were the predictions right: each decision's predicted time against the time that it took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...gate.facts import Reason
from ...runs.decisions import DecisionRecord
from ...runs.distribution import quantile
from .charts import SERIES, chart, label, seconds_axis
from .content import Figure, Section, Table
from .numbers import count, percent, seconds

__all__ = ["is_forced", "predictions_section"]

_MOST_POINTS = 1500


class _Point(NamedTuple):
    loaded: bool
    predicted: float
    actual: float
    record: DecisionRecord


def is_forced(record: DecisionRecord) -> bool:
    """Whether a forced policy decided, and not the rule."""
    return record.decision is not None and record.decision.reason in (Reason.ALWAYS, Reason.NEVER)


def predictions_section(records: Sequence[DecisionRecord]) -> Section | None:
    """Predicted against actual, loads and computes apart; None where nothing was on offer."""
    points = list(_points(records))
    if not points:
        return None
    values = [value for point in points for value in (point.predicted, point.actual)]
    low, high = min(values), max(values)
    rows = []
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [low, high],
            "y": [low, high],
            "line": {"color": "var(--faint)", "width": 1.2, "dash": "dot"},
            "name": "as predicted",
            "hoverinfo": "skip",
        }
    ]
    for loaded, name, colour in ((True, "loaded", SERIES[0]), (False, "computed", SERIES[1])):
        found = [point for point in points if point.loaded is loaded]
        if not found:
            continue
        traces.append(_dots(found, name, colour))
        errors = [abs(point.actual / point.predicted - 1.0) for point in found]
        rows.append(
            (
                name,
                count(len(found)),
                percent(quantile(errors, 0.5) or 0.0),
                percent(quantile(errors, 0.95) or 0.0),
                seconds(sum(point.record.lost_seconds for point in found)),
            )
        )
    lost = "lost, forced choices too" if any(is_forced(point.record) for point in points) else "lost"
    axis = seconds_axis(low, high)
    return Section(
        name="predictions",
        title="Decisions: predicted and actual",
        lead=_lead(points),
        figures=(
            Figure(
                name="predictions-chart",
                chart=chart(
                    traces,
                    hovermode="closest",
                    xaxis={**axis, "title": {"text": "predicted"}},
                    yaxis={**axis, "title": {"text": ""}},
                ),
                alt="Scatter of predicted against actual seconds; on the diagonal they are equal. "
                + _lead(points),
                axes="Actual time, against the predicted median (both log scale)",
                height=400,
            ),
        ),
        table=Table(
            (
                "what was done",
                "decisions",
                "error p50",
                "error p95",
                lost,
            ),
            tuple(rows),
            frozenset({1, 2, 3, 4}),
        ),
        note="Error: |actual / predicted - 1|. Lost: what the other choice was predicted to save, where the "
        "choice turned out wrong, choices of a forced policy included. Requests that measured the link, "
        "first loads of an unmeasured tier and loads that failed are left out.",
        half=True,
    )


def _points(records: Sequence[DecisionRecord]) -> Iterator[_Point]:
    for record in records:
        decision, actual = record.decision, record.actual
        if decision is None or decision.candidate_bytes == 0 or record.fallback is not None or record.aborted:
            continue
        if record.arm_label == "link" or decision.reason is Reason.UNMEASURED:
            continue
        if decision.loads:
            # The prediction holds the look-up, which was over when the load was timed.
            looked_up = record.facts.lookup_seconds if record.facts is not None else 0.0
            predicted, took = decision.load_median_seconds - looked_up, actual.load_seconds
        else:
            predicted, took = decision.recompute_seconds, actual.recompute_seconds
        if took and predicted > 0.0 and took > 0.0:
            yield _Point(decision.loads, predicted, took, record)


def _dots(points: Sequence[_Point], name: str, colour: str) -> dict[str, Any]:
    drawn = points[:: max(1, math.ceil(len(points) / _MOST_POINTS))]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [point.predicted for point in drawn],
        "y": [point.actual for point in drawn],
        "customdata": [_words(point) for point in drawn],
        "marker": {
            "color": colour,
            "size": 8,
            "opacity": 0.7,
            "symbol": "circle" if name == "loaded" else "diamond",
            "line": {"width": 0},
        },
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _words(point: _Point) -> str:
    decision = point.record.decision
    reason = "" if decision is None else decision.reason.value.replace("_", " ")
    return (
        f"{label(point.record.request_id)}: {'loaded' if point.loaded else 'computed'} ({reason})<br>"
        f"predicted {seconds(point.predicted)}, took {seconds(point.actual)}"
    )


def _lead(points: Sequence[_Point]) -> str:
    near = sum(abs(point.actual / point.predicted - 1.0) <= 0.25 for point in points)
    return f"{count(near)} of {count(len(points))} times came within 25% of their prediction."
