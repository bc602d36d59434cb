"""The command line: one module per command, loaded by name when it is asked for."""

from __future__ import annotations

__all__: list[str] = []
