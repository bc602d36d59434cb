"""Who computes: the embedded transformers engine, vLLM's connector, and a fake for tests."""

from __future__ import annotations

__all__: list[str] = []
