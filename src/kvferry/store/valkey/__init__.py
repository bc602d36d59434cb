"""A Valkey (or Redis) server as a tier, the thin client that reads straight into the caller's memory, and
an embedded server for one machine."""

from __future__ import annotations

from .server import EmbeddedServer
from .tier import ValkeyTier

__all__ = ["EmbeddedServer", "ValkeyTier"]
