"""Which block goes when there is no room: one policy a file, behind one interface."""

from __future__ import annotations

from .lru import LRU
from .policy import EvictionPolicy

__all__ = ["LRU", "EvictionPolicy"]
