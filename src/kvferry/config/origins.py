"""Where a value came from, so that an error and `kvferry config show` can say it.

Owns the words for the five sources, weakest first: default, file, environment, vLLM's JSON, flag. It
refuses to know what the values are.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["DEFAULT", "Origin"]


class Origin(msgspec.Struct, frozen=True):
    """One place where a value was written."""

    kind: Literal["default", "file", "env", "json", "flag"]
    where: str = ""
    """As in "kvferry.yaml:7", "KVFERRY_GATE__MARGIN", "--set gate.margin"."""

    def __str__(self) -> str:
        if self.kind == "default":
            return "default"
        return f"environment {self.where}" if self.kind == "env" else self.where


DEFAULT = Origin("default")
