"""Bandwidth and round trip of a transport, measured between the two ends that will use it.

Nothing here comes from a data sheet: a channel's claimed figure (`model/channels.py`) never becomes one of
these. The figure is for people and for choosing a codec; the gate learns from whole hand-offs.
"""

from __future__ import annotations

import statistics

import msgspec

from .contract import Outgoing

__all__ = ["LinkFigures", "measure_link"]

_PROBE_BYTES = 4 << 20


class LinkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of a few probes."""

    round_trip_seconds: float
    """Of one byte there and word back."""
    bytes_per_second: float
    """Of a payload, the round trip taken off."""
    probes: int
    payload_bytes: int


def measure_link(
    outgoing: Outgoing, deadline: float, *, probes: int = 5, payload_bytes: int = _PROBE_BYTES
) -> LinkFigures:
    """Probe a connection before its offer. Raises HandoffFailed, ValueError for fewer than one probe."""
    if probes < 1 or payload_bytes < 2:
        raise ValueError("a link is measured with one probe or more, of two bytes or more")
    small, large = memoryview(bytes(1)), memoryview(bytes(payload_bytes))
    outgoing.round_trip(small, deadline)
    short = statistics.median(outgoing.round_trip(small, deadline) for _ in range(probes))
    outgoing.round_trip(large, deadline)
    long = statistics.median(outgoing.round_trip(large, deadline) for _ in range(probes))
    return LinkFigures(
        round_trip_seconds=short,
        bytes_per_second=(payload_bytes - 1) / max(long - short, 1e-9),
        probes=probes,
        payload_bytes=payload_bytes,
    )
