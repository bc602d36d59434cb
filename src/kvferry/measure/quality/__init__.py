"""What a change of the KV costs in quality: of the cache itself, of attention, and of what the model says."""

from __future__ import annotations

__all__: list[str] = []
