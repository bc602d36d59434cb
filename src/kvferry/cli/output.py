"""How reading commands write to standard output: aligned columns for people, JSON for machines.

Owns the two forms. Columns are never cut or wrapped, so that the output of a pipe can be searched.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from cyclopts import Parameter

__all__ = ["Json", "OverwritePage", "write_columns", "write_json"]

Json: TypeAlias = Annotated[bool, Parameter(show_default=False, help="Print JSON, for machines.")]
"""The flag that every reading command has."""

OverwritePage: TypeAlias = Annotated[
    bool, Parameter(name="--overwrite", show_default=False, help="Replace the page where its file exists.")
]
"""The flag of every command that writes a page where the user says."""


def write_json(document: Any) -> None:
    """One JSON document, indented; figures that are not finite become null."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    sys.stdout.write(text + "\n")


def write_columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> None:
    """Rows of texts, every column as wide as its widest; columns in `right` are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write((indent + "  ".join(cells)).rstrip() + "\n")
