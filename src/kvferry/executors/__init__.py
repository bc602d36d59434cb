"""Who carries out the cache's commands: threads beside an engine, and later asyncio and a virtual clock."""

from __future__ import annotations

__all__: list[str] = []
