"""The parts of the tier under vLLM's own offloading: namespaces, chunks, commands, step times, metrics."""

from __future__ import annotations

__all__: list[str] = []
