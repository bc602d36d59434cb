"""What the network carries: bytes to and from a pool over time, and in the situations it must stand."""

from __future__ import annotations

from typing import Any

from ...analysis.result import Analysis, Flows, Window
from ...units import counted
from .charts import SERIES, chart
from .content import Figure, Section, Table
from .numbers import gigabits, span

__all__ = ["flows_section"]

_HOURS = 2 * 3600.0


def flows_section(result: Analysis) -> Section | None:
    """The series with the worst window, and the four pictures; None where bytes are not known."""
    flows, window = result.flows, result.worst_window
    if flows is None or not flows.series:
        return None
    scale, unit = (3600.0, "h") if result.span_seconds > _HOURS else (60.0, "min")
    # A mean holds for its whole step, so the line stands still until the next one, or the trace's end.
    xs = [point.start_seconds / scale for point in flows.series]
    end = result.span_seconds / scale
    xs.append(end if end > xs[-1] else xs[-1] + flows.step_seconds / scale)
    traces = [
        _line("read from the pool", xs, [p.read_bits_per_second for p in flows.series], SERIES[0], unit),
        _line("written to the pool", xs, [p.write_bits_per_second for p in flows.series], SERIES[1], unit),
    ]
    highest = max(max(p.read_bits_per_second, p.write_bits_per_second) for p in flows.series) / 1e9
    # A window as long as the trace covers all of it and marks nothing.
    short = window is not None and window.seconds >= result.span_seconds
    shapes, notes = ([], []) if window is None or short else _bands(window, result.span_seconds, scale)
    figure = Figure(
        name="flows-chart",
        chart=chart(
            traces,
            hovermode="x unified",
            xaxis={
                "title": {"text": f"time since the first request, {unit}"},
                "range": [0, xs[-1]],
                "nticks": 9,
            },
            # Room above the lines for the words on the windows.
            yaxis={"range": [0, 1.24 * max(highest, 1e-9)], "nticks": 6},
            shapes=shapes,
            annotations=notes,
        ),
        alt=f"Lines of reads and writes over time. {_lead(window)}",
        axes=f"Gbit/s, means over {span(flows.step_seconds)}",
        height=360,
    )
    return Section(
        name="flows",
        title="What the network carries",
        lead=_lead(window) + (" That is the whole trace." if short else ""),
        figures=(figure,),
        table=_pictures(flows),
        note="A pool that forgets nothing and serves every hit; "
        f"{counted(flows.storage_nodes, 'storage node')}, {counted(flows.replicas, 'replica')}. Each rate of "
        "a situation is of its own worst window.",
    )


def _line(name: str, xs: list[float], rates: list[float], colour: str, unit: str) -> dict[str, Any]:
    values = [rate / 1e9 for rate in rates]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": xs,
        "y": [*values, values[-1]],
        "line": {"color": colour, "width": 1.8, "shape": "hv"},
        "xhoverformat": ".1f",
        "hovertemplate": f"%{{y:.1f}} Gbit/s {name}<extra></extra>",
    }


def _bands(window: Window, length: float, scale: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes, notes = [], []
    for row, (what, start, rate, band, colour) in enumerate(
        (
            ("read", window.read_start_seconds, window.read_bits_per_second, "var(--band-read)", SERIES[0]),
            ("written", window.write_start_seconds, window.write_bits_per_second, "var(--band)", SERIES[1]),
        )
    ):
        # Words of a window near the end stand at its right edge, to stay inside.
        late = start + window.seconds / 2 > 0.6 * length
        left, right = start / scale, (start + window.seconds) / scale
        shapes.append(
            {
                "type": "rect",
                "layer": "below",
                "xref": "x",
                "yref": "paper",
                "fillcolor": band,
                "line": {"width": 0},
                "x0": left,
                "x1": right,
                "y0": 0,
                "y1": 1,
            }
        )
        shapes.append(
            {
                "type": "line",
                "xref": "x",
                "yref": "y",
                "x0": left,
                "x1": right,
                "y0": rate / 1e9,
                "y1": rate / 1e9,
                "line": {"color": colour, "width": 1.4, "dash": "dash"},
            }
        )
        notes.append(
            {
                "text": f"worst {span(window.seconds)} {what}: {gigabits(rate)}",
                "name": what,
                "showarrow": False,
                "font": {"color": colour, "size": 11.5},
                "xref": "x",
                "yref": "paper",
                "xanchor": "right" if late else "left",
                "yanchor": "top",
                "x": right if late else left,
                "y": 1,
                "xshift": -5 if late else 5,
                "yshift": -16 * row - 2,
            }
        )
    return shapes, notes


def _lead(window: Window | None) -> str:
    if window is None:
        return ""
    return (
        f"In the worst {span(window.seconds)} a pool would send {gigabits(window.read_bits_per_second)} and "
        f"take {gigabits(window.write_bits_per_second)}, in the mean of that window."
    )


def _pictures(flows: Flows) -> Table | None:
    if not flows.pictures:
        return None
    return Table(
        ("situation", "read", "written", "replication", "one node", "assumed"),
        tuple(
            (
                picture.name.replace("-", " "),
                gigabits(picture.read_bits_per_second),
                gigabits(picture.write_bits_per_second),
                gigabits(picture.replica_bits_per_second),
                gigabits(picture.per_node_bits_per_second),
                picture.what,
            )
            for picture in flows.pictures
        ),
        frozenset({1, 2, 3, 4}),
    )
