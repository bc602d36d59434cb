"""Traces that nobody served: classes with prefix pools, skew, bursts, growing chats, agents."""

from __future__ import annotations

from .generate import synthesize
from .recipe import PRESETS, PromptClass, Recipe, read_recipe

__all__ = ["PRESETS", "PromptClass", "Recipe", "read_recipe", "synthesize"]
