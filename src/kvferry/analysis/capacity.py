"""What of a memory a cache may use.

    C_effective = C_physical - C_active_decode - C_reserved - C_fragmentation

A hit ratio at the physical capacity is one that no replica will see: blocks of running requests, the engine's
own reserve and the unfilled rest of blocks come first.
"""

from __future__ import annotations

from ..errors import UsageError
from .result import Capacity

__all__ = ["effective_capacity"]


def effective_capacity(
    physical_bytes: int,
    *,
    active_decode_bytes: int = 0,
    reserved_bytes: int = 0,
    fragmentation_bytes: int = 0,
) -> Capacity:
    """The capacity of one replica, in bytes. Raises `UsageError` where nothing is left for a cache."""
    for name, value in (
        ("capacity", physical_bytes),
        ("active decode", active_decode_bytes),
        ("reserved", reserved_bytes),
        ("fragmentation", fragmentation_bytes),
    ):
        if value < 0:
            raise UsageError(f"{name}: {value} bytes is not an amount; give 0 or more")
    effective = physical_bytes - active_decode_bytes - reserved_bytes - fragmentation_bytes
    if effective <= 0:
        raise UsageError(
            f"capacity: of {physical_bytes:,} bytes, {active_decode_bytes:,} of active decode, "
            f"{reserved_bytes:,} reserved and {fragmentation_bytes:,} of fragmentation leave nothing to "
            "cache in"
        )
    return Capacity(
        physical_bytes=physical_bytes,
        active_decode_bytes=active_decode_bytes,
        reserved_bytes=reserved_bytes,
        fragmentation_bytes=fragmentation_bytes,
        effective_bytes=effective,
    )
