"""Beside vLLM: its KV cache pages, and what moves them."""

from __future__ import annotations

__all__: list[str] = []
