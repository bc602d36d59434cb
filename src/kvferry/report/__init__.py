"""What people look at: tables for a terminal, and later one self-contained page."""

from __future__ import annotations

__all__: list[str] = []
