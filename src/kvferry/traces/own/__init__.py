"""kvferry's own trace format: its records, reader and writer."""

from __future__ import annotations

from .read import open_own
from .records import TRACE_VERSION, Header, Line
from .write import TraceWriter

__all__ = ["TRACE_VERSION", "Header", "Line", "TraceWriter", "open_own"]
