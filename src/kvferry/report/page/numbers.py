"""Numbers as a page shows them: shares, counts, spans and rates in the unit that reads best."""

from __future__ import annotations

import math

from ...units import format_bytes

__all__ = [
    "compact",
    "count",
    "gigabits",
    "optional_seconds",
    "percent",
    "points",
    "seconds",
    "size",
    "span",
]

_SPANS = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h"), (math.inf, 86400.0, "d"))
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(share: float | None) -> str:
    """A share in percent: "37.4%", "0.04%"; a dash where there is none."""
    if share is None or not math.isfinite(share):
        return "–"
    value = 100.0 * share
    if value and abs(value) < 0.1:
        return f"{value:.2g}%"
    return f"{value:.1f}%"


def points(difference: float, *, sign: bool = True) -> str:
    """A difference of two shares in percentage points: "+22.3 points"."""
    text = f"{100.0 * difference:{'+' if sign else ''}.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} points"


def count(number: float) -> str:
    """A whole number with separators."""
    return f"{number:,.0f}"


def compact(number: float) -> str:
    """A count in three digits: "144.8 M"."""
    for scale, prefix in _STEPS:
        if abs(number) >= scale:
            value = number / scale
            return f"{value:.0f} {prefix}" if value >= 99.95 else f"{value:#.3g} {prefix}"
    return f"{number:,.0f}"


def size(size_bytes: float) -> str:
    """Bytes in three digits with a binary unit: "17.4 TiB"."""
    number, unit = format_bytes(size_bytes).split(" ")
    return f"{float(number):.0f} {unit}" if float(number) >= 100 else f"{float(number):.3g} {unit}"


def gigabits(bits_per_second: float) -> str:
    """A rate in Gbit/s, the unit of network ports: "46.0 Gbit/s"."""
    value = bits_per_second / 1e9
    if value >= 1000:
        return f"{value:,.0f} Gbit/s"
    return f"{value:.1f} Gbit/s" if value >= 0.1 or value == 0 else f"{value:.2g} Gbit/s"


def seconds(value: float) -> str:
    """A measured time: "381 ms", "6.69 s"."""
    if value and value < 1.0:
        return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.2g} ms"
    return f"{value:#.3g} s" if 0 < value < 99.95 else f"{value:,.0f} s"


def optional_seconds(value: float | None) -> str:
    """The same; a dash where nothing was measured."""
    return "–" if value is None else seconds(value)


def span(value: float) -> str:
    """A span of seconds, minutes, hours or days in two or three digits: "59 min"."""
    length, unit = next((length, unit) for most, length, unit in _SPANS if value < most or most == math.inf)
    number = value / length
    if not value or number >= 0.01:
        return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
    return seconds(value)
