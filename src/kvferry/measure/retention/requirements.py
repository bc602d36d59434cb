"""What the user requires of a map, such as top1>=0.9: parsed before anything is measured, judged after.

Owns the names. Where more is better the lower end of the interval must reach the bound, where less is better
the upper end: so that a lucky sample of few documents does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from ...errors import UsageError
from ...runs.retention_summary import Figure, Refused, Required

__all__ = ["LESS_IS_BETTER", "MORE_IS_BETTER", "Requirement", "check_required", "parse_required"]

MORE_IS_BETTER = (
    "top1",
    "top1@1",
    "top1@32",
    "top1@128",
    "beyond_top1",
    "longer_top1",
    "longer_floor_retention",
    "longer_retention",
    "accuracy",
    "retention",
    "floor_retention",
    "floor_retention_accuracy",
    "gap_recovered",
    "gap_recovered_accuracy",
    "gain_over_none",
    "gain_over_random",
    "gain_over_wrong",
    "slope_top1",
)
LESS_IS_BETTER = ("kl", "nll_difference", "slope_nll")

_FORM = re.compile(r"\s*([\w@]+)\s*(>=|<=)\s*([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*")


class Requirement(msgspec.Struct, frozen=True):
    """NAME>=BOUND, or NAME<=BOUND where less is better."""

    text: str
    name: str
    bound: float

    @property
    def end(self) -> str:
        return "high" if self.name in LESS_IS_BETTER else "low"


def parse_required(texts: Sequence[str]) -> list[Requirement]:
    """Raises `UsageError` for a form or a name that is not known."""
    return [_parse(text) for text in texts]


def check_required(required: Sequence[Requirement], figures: Mapping[str, Figure]) -> tuple[Required, ...]:
    """Each one with its figure; one whose figure was refused is not met."""
    return tuple(
        Required(
            text=one.text,
            name=one.name,
            end=one.end,
            bound=one.bound,
            figure=(figure := figures[one.name]),
            met=_met(one, figure),
        )
        for one in required
    )


def _met(one: Requirement, figure: Figure) -> bool:
    if isinstance(figure, Refused):
        return False
    return figure.high <= one.bound if one.end == "high" else figure.low >= one.bound


def _parse(text: str) -> Requirement:
    found = _FORM.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        name, sign, bound = found[1], found[2], float(found[3])
    except ValueError:
        raise UsageError(f"--require {text!r}: write NAME>=NUMBER, such as top1>=0.9") from None
    if name not in MORE_IS_BETTER and name not in LESS_IS_BETTER:
        raise UsageError(
            f"--require {text!r}: there is no figure {name!r}; there are, with >=: "
            f"{', '.join(MORE_IS_BETTER)}; with <=: {', '.join(LESS_IS_BETTER)}"
        )
    right = "<=" if name in LESS_IS_BETTER else ">="
    if sign != right:
        better = "less" if right == "<=" else "more"
        raise UsageError(f"--require {text!r}: of {name} {better} is better; write {name}{right}{bound:g}")
    return Requirement(text.strip(), name, bound)
