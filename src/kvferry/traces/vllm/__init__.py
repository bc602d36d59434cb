"""vLLM's KV events: decoded from ZMQ, recorded under keyed hashes, read as a trace."""

from __future__ import annotations

from .events import Cleared, Removed, Stored, decode_batch
from .read import open_vllm_events
from .record import EventRecorder, record_events
from .rekey import Rekeying

__all__ = [
    "Cleared",
    "EventRecorder",
    "Rekeying",
    "Removed",
    "Stored",
    "decode_batch",
    "open_vllm_events",
    "record_events",
]
