"""What was run: the run directory, written by commands that measure and read by those that explain."""

from __future__ import annotations

from .compare import Comparison, Difference, Figure, compare, differences
from .directory import RunDirectory, RunHeader, Setting
from .lines import LineWriter, read_lines
from .machine import Machine, describe_machine, versions

__all__ = [
    "Comparison",
    "Difference",
    "Figure",
    "LineWriter",
    "Machine",
    "RunDirectory",
    "RunHeader",
    "Setting",
    "compare",
    "describe_machine",
    "differences",
    "read_lines",
    "versions",
]
