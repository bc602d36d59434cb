"""A figure with its interval as two cells of a table."""

from __future__ import annotations

from ..runs.retention_summary import Figure, Interval

__all__ = ["figure_cells"]


def figure_cells(figure: Figure | None, form: str) -> tuple[str, str]:
    """The value and "low to high" in the format `form`; why there is none in the second cell."""
    if figure is None:
        return "", ""
    if not isinstance(figure, Interval):
        return "", figure.reason
    return form.format(figure.value), f"{form.format(figure.low)} to {form.format(figure.high)}"
