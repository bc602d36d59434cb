"""Two runs side by side, when the comparison can mean something.

Owns the rule that arms differ in one declared factor and nothing else: settings, seed, versions, machine
and whatever the run said was held equal. Runs that differ in more are refused with the factors named, since
their figures could not be laid at any one's door. Refuses to know what a figure means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import UsageError
from .directory import RunDirectory, RunHeader

__all__ = ["Comparison", "Difference", "Figure", "compare", "differences"]

# Where a run keeps its files and what its replica is called change nothing that is measured.
_NOT_FACTORS = frozenset({"config.record", "config.profile", "config.replica"})


class Difference(msgspec.Struct, frozen=True):
    """One factor in which two runs differ; None where a run does not have it."""

    factor: str
    """"config.gate.policy", "seed", "versions.torch", "machine.cores", "equal.model"."""
    left: Any
    right: Any


class Figure(msgspec.Struct, frozen=True):
    """One number of both summaries."""

    name: str
    """"arms.cold.p50_seconds"."""
    left: float | None
    right: float | None
    ratio: float | None
    """right / left; None where one is missing or left is zero."""


class Comparison(msgspec.Struct, frozen=True):
    """What may be compared, and the figures."""

    factor: Difference | None
    """The one thing that differs; None for a repetition."""
    figures: list[Figure]


def differences(left: RunHeader, right: RunHeader) -> list[Difference]:
    """Every factor in which two runs differ, sorted by name."""
    ours, theirs = _factors(left), _factors(right)
    return [
        Difference(name, ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if name not in _NOT_FACTORS and ours.get(name) != theirs.get(name)
    ]


def compare(left: RunDirectory, right: RunDirectory, factor: str | None = None) -> Comparison:
    """Compare two finished runs that differ in `factor` at most (None: in any one factor at most).

    `factor` is a name as `Difference.factor` spells it; a setting's may come without "config.". Raises
    `UsageError` that names the factors when there are others, or when the declared one does not differ.
    """
    found = differences(left.header, right.header)
    if factor is not None:
        declared = [one for one in found if one.factor in (factor, f"config.{factor}")]
        others = [one for one in found if one not in declared]
        if not declared:
            raise UsageError(f"the runs do not differ in {factor!r}{_tell(others, '; they differ in ')}")
    else:
        declared, others = (found, []) if len(found) <= 1 else ([], found)
    if others:
        beside = f"more than {factor!r}" if factor else "more than one factor"
        raise UsageError(
            f"these runs cannot be compared: they differ in {beside}{_tell(others, ': ')}. "
            "Repeat one of them with these kept equal"
        )
    return Comparison(declared[0] if declared else None, _figures(left.summary(), right.summary()))


def _factors(header: RunHeader) -> dict[str, Any]:
    factors = {f"config.{name}": setting.value for name, setting in header.config.items()}
    factors["seed"] = header.seed
    factors |= {f"versions.{name}": version for name, version in header.versions.items()}
    factors |= {f"machine.{name}": value for name, value in msgspec.structs.asdict(header.machine).items()}
    return factors | _flat(header.equal, "equal")


def _figures(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Figure]:
    ours, theirs = _numbers(left), _numbers(right)
    figures = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        one, other = ours.get(name), theirs.get(name)
        figures.append(Figure(name, one, other, other / one if one and other is not None else None))
    return figures


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in _flat(summary, "").items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _flat(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves |= _flat(inner, f"{name}.{key}" if name else str(key))
    return leaves


def _tell(found: list[Difference], before: str) -> str:
    if not found:
        return ""
    return before + ", ".join(f"{one.factor} ({one.left!r} and {one.right!r})" for one in found)
