"""The worked example of a gate: one load over one link against one recompute.

Owns the arithmetic of `kvferry break-even`: no quantiles, no interference, no other loads, only the four
numbers that fit on the back of an envelope. The live gate's rule is stricter: it compares the slow end of
the load with the middle of the recompute and asks for a margin on top.
"""

from __future__ import annotations

import math
from decimal import Decimal

import msgspec

from ..errors import UsageError

__all__ = ["BreakEven", "break_even"]


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """What one bandwidth means for one load."""

    bandwidth_bytes_per_second: float | None
    """The link that was asked about; None when only the break-even was."""
    load_seconds: float | None
    """overhead + bytes / bandwidth; None without a bandwidth."""
    recompute_seconds: float
    break_even_bytes_per_second: float
    """Loading wins only above it; infinite when the overhead alone takes as long as the recompute."""
    carry: bool | None
    """Whether the load is ready strictly earlier; None without a bandwidth."""


def break_even(
    size_bytes: int,
    overhead_seconds: float,
    recompute_seconds: float,
    bandwidth_bytes_per_second: float | None = None,
) -> BreakEven:
    """Compare loading `size_bytes` with recomputing them.

        load       = overhead + bytes / bandwidth
        break-even = bytes / (recompute - overhead)

    `overhead_seconds` is lookup and preparation: what a load costs on a link of infinite speed. 256 MiB with
    4 ms of overhead against 60 ms take 35.25 ms at 8 GiB/s and 129 ms at 2 GiB/s and break even at
    4.46 GiB/s. Computed in decimals, so that 35.25 ms is 0.03525 and not its neighbour. Raises `UsageError`
    for amounts that are negative or not finite, and for a bandwidth of zero.
    """
    for name, value in (
        ("bytes", size_bytes),
        ("overhead", overhead_seconds),
        ("recompute", recompute_seconds),
    ):
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{name}: {value!r} is not an amount; give a finite number, 0 or more")
    overhead, recompute = Decimal(repr(overhead_seconds)), Decimal(repr(recompute_seconds))
    threshold = float(size_bytes / (recompute - overhead)) if recompute > overhead else math.inf
    load_seconds: float | None = None
    if bandwidth_bytes_per_second is not None:
        if not bandwidth_bytes_per_second > 0:
            raise UsageError(f"bandwidth: {bandwidth_bytes_per_second!r} carries nothing; give more than 0")
        load_seconds = float(overhead + size_bytes / Decimal(repr(bandwidth_bytes_per_second)))
    return BreakEven(
        bandwidth_bytes_per_second=bandwidth_bytes_per_second,
        load_seconds=load_seconds,
        recompute_seconds=recompute_seconds,
        break_even_bytes_per_second=threshold,
        carry=None if load_seconds is None else load_seconds < recompute_seconds,
    )
