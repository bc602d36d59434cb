"""How we speak HTTP: the OpenAI-compatible server of a replica, and a client that times it."""

from __future__ import annotations

__all__: list[str] = []
