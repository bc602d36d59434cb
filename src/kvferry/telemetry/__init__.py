"""Metrics and spans: names in one file, recorders behind it, silent where the extra is not installed."""

from __future__ import annotations

from .accounts import observer, path_of, record_account
from .metrics import CONTENT_TYPE, Metrics, open_metrics
from .spans import Spans, open_spans

__all__ = [
    "CONTENT_TYPE",
    "Metrics",
    "Spans",
    "observer",
    "open_metrics",
    "open_spans",
    "path_of",
    "record_account",
]
