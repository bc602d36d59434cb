"""What was asked: request traces of many formats, read as one stream of columns, and written."""

from __future__ import annotations

from .chunk import FORMATS, Format, Problem, Problems, Trace, TraceChunk
from .open import open_trace, recognise
from .requests import Request, from_requests

__all__ = [
    "FORMATS",
    "Format",
    "Problem",
    "Problems",
    "Request",
    "Trace",
    "TraceChunk",
    "from_requests",
    "open_trace",
    "recognise",
]
