"""Configs of published models, as data: the fields that a KV cache depends on, as published."""

from __future__ import annotations

__all__: list[str] = []
