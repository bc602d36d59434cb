"""What is true here: the demo, and later engine and link measurements, experiments, quality."""

from __future__ import annotations

__all__: list[str] = []
