"""Another run beside this one, figure by figure, where the comparison can mean something."""

from __future__ import annotations

from ...runs.compare import Figure, compare
from ...runs.directory import RunDirectory
from .content import Section, Table

__all__ = ["beside_section"]


def beside_section(run: RunDirectory, other: RunDirectory) -> Section:
    """Both summaries' figures. Raises `UsageError` where the runs differ in more than one factor."""
    found = compare(other, run)
    factor = found.factor
    lead = (
        "A repetition: the runs differ in nothing that was recorded."
        if factor is None
        else f"They differ in {factor.factor} alone: {factor.right} here, {factor.left} there."
    )
    return Section(
        name="beside",
        title=f"Beside {other.path.resolve().name}",
        lead=lead,
        table=Table(
            ("figure", "this run", "the other", "this / other"),
            tuple(_row(figure) for figure in found.figures),
            frozenset({1, 2, 3}),
        ),
    )


def _row(figure: Figure) -> tuple[str, str, str, str]:
    ratio = "–" if figure.ratio is None else f"{figure.ratio:.3f}"
    return figure.name, _number(figure.right), _number(figure.left), ratio


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.6g}"
