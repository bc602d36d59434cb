"""Host memory as a tier: one arena, divided into slots."""

from __future__ import annotations

from .tier import MemoryTier

__all__ = ["MemoryTier"]
