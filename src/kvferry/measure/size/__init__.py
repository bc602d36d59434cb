"""Whether a model's cache really weighs what is computed: two prefixes, and the slope between them."""

from __future__ import annotations

__all__: list[str] = []
