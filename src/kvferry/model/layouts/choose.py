"""From an engine's name to its layout."""

from __future__ import annotations

from ..layers import Model
from .contract import Layout
from .flat import FlatLayout
from .llama_cpp import LlamaCppLayout
from .setup import Setup
from .sglang import SglangLayout
from .vllm import VllmLayout

__all__ = ["layout_of"]


def layout_of(model: Model, setup: Setup) -> Layout:
    """The layout of a model. Raises `UsageError` and `ModelError` for what the engine would refuse."""
    if setup.engine == "vllm":
        return VllmLayout(model, setup)
    if setup.engine == "sglang":
        return SglangLayout(model, setup)
    if setup.engine == "llama.cpp":
        return LlamaCppLayout(model, setup)
    return FlatLayout(model, setup)
