"""Carry KV caches between tiers, replicas, machines and models, when the crossing beats recompute."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
