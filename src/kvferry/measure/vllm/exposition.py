"""Reads the counters that matter here out of a server's /metrics: vLLM's own, and ours beside them.

Knows just as much of the Prometheus text format as counters need; gauges and histograms are left out.
"""

from __future__ import annotations

import re

__all__ = ["SHOWN", "counters"]

SHOWN = (
    "vllm:prefix_cache_",
    "vllm:external_prefix_cache_",
    "vllm:prompt_tokens_by_source",
    "vllm:prompt_tokens_cached_by_source",
    "kvferry_",
)
"""How the names begin that are worth a line."""

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAME_EVERYWHERE = ("model_name", "engine", "replica", "process")
_COUNTED = "_total"


def counters(text: str) -> dict[str, float]:
    """What is not 0, by name and by those labels that tell series apart; series alike are added up."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or not match["name"].startswith(SHOWN) or not match["name"].endswith(_COUNTED):
            continue
        labels = [
            f"{name}={value}"
            for name, value in _LABEL.findall(match["labels"] or "")
            if name not in _SAME_EVERYWHERE
        ]
        key = match["name"] + (f"{{{','.join(sorted(labels))}}}" if labels else "")
        value = float(match["value"])
        if value:
            found[key] = found.get(key, 0.0) + value
    return found
