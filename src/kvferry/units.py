"""Amounts as people write them: "16GiB", "5ms", "25Gbit/s", "32Ki"; and back.

Owns every unit that a setting, a flag or a report may carry. Inside the package an amount is a bare number
whose name carries the unit (`_bytes`, `_seconds`, `_tokens`); text is parsed at the edge, here, and case
decides: `GiB` is 2**30 bytes, `GB` 10**9, `Gbit` 10**9 bits, `ms` a thousandth of a second. What could be
read in two ways (`KB`, `Mb`, `5m`, a number without a unit) is refused with what to write instead.

It refuses to know which setting it reads: callers pass a name for the message.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated

import msgspec

from .errors import ConfigError

__all__ = [
    "GB",
    "GIB",
    "KIB",
    "MIB",
    "Bytes",
    "Rate",
    "Seconds",
    "Tokens",
    "counted",
    "format_bytes",
    "format_rate",
    "format_seconds",
    "parse_bytes",
    "parse_rate",
    "parse_seconds",
    "parse_tokens",
]

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

Bytes = Annotated[int, msgspec.Meta(extra={"unit": "bytes"})]
"""An int at run time; in a schema, a size that text may give as "16GiB"."""
Seconds = Annotated[float, msgspec.Meta(extra={"unit": "seconds"})]
"""A float at run time; in a schema, a span that text may give as "5ms"."""
Rate = Annotated[float, msgspec.Meta(extra={"unit": "rate"})]
"""Bytes per second, a float at run time; in a schema, text such as "8GiB/s" or "25Gbit/s"."""
Tokens = Annotated[int, msgspec.Meta(extra={"unit": "tokens"})]
"""An int at run time; in a schema, a count that text may give as "32Ki"."""

_PREFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SCALES = {**_PREFIXES, **_BINARY}

_BYTE_UNITS = {"B": Decimal(1)} | {f"{p}B": Decimal(n) for p, n in _SCALES.items()}
_BIT_UNITS = {"bit": Decimal(1) / 8} | {f"{p}bit": Decimal(n) / 8 for p, n in _SCALES.items()}
_RATE_UNITS = {f"{unit}/s": scale for unit, scale in (_BYTE_UNITS | _BIT_UNITS).items()}
_TIME_UNITS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "min": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "μs": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
_TOKEN_UNITS = {"": Decimal(1)} | {p: Decimal(n) for p, n in _SCALES.items() if p not in ("P", "Pi")}

_AMOUNT = re.compile(r"(?P<number>\d+(?:_\d{3})*(?:\.\d+)?) ?(?P<unit>[^\s\d]*)", re.ASCII)
_LARGEST_BYTES = 2**63 - 1


def parse_bytes(value: str | int, name: str = "size") -> int:
    """A size in bytes: "16GiB", "64MB", "512B", or an int that is already bytes.

    Raises `ConfigError` on anything else, a bare number in text included.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ConfigError(f"{name}: {value} is negative; a size is 0 or more, such as 16GiB")
        return value
    amount, scale = _split(value, name, _BYTE_UNITS, "16GiB or 1073741824B")
    size = amount * scale
    if size != size.to_integral_value() and scale == 1:
        raise ConfigError(f"{name}: {value!r} is not a whole number of bytes; write 16GiB or 1073741824B")
    if size > _LARGEST_BYTES:
        raise ConfigError(f"{name}: {value!r} is more than any machine holds; write a size below 8192PiB")
    return int(size.to_integral_value())


def parse_seconds(value: str | float, name: str = "span") -> float:
    """A span of time in seconds: "5ms", "250us", "2h", or a number that is already seconds.

    Raises `ConfigError` on anything else, a bare number in text included.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"{name}: {value!r} is not a span of time; write one such as 5ms or 2h")
        return float(value)
    amount, scale = _split(value, name, _TIME_UNITS, "5ms, 30s or 2h")
    return _finite(amount * scale, value, name)


def parse_rate(value: str, name: str = "rate") -> float:
    """Bytes per second from "8GiB/s", "3.1GB/s" or "25Gbit/s"; never zero. Raises `ConfigError`."""
    amount, scale = _split(value, name, _RATE_UNITS, "8GiB/s or 25Gbit/s")
    if amount == 0:
        raise ConfigError(f"{name}: a rate of zero carries nothing; write one such as 8GiB/s or 25Gbit/s")
    return _finite(amount * scale, value, name)


def parse_tokens(value: str | int, name: str = "tokens") -> int:
    """A count of tokens: 4096, "4096", "32k" (32,000) or "32Ki" (32,768). Raises `ConfigError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ConfigError(f"{name}: {value} is negative; a count of tokens is 0 or more, such as 4096")
        return value
    amount, scale = _split(value, name, _TOKEN_UNITS, "4096, 32k (32,000) or 32Ki (32,768)")
    count = amount * scale
    if count != count.to_integral_value():
        raise ConfigError(f"{name}: {value!r} is not a whole number of tokens; write one such as 4096")
    return int(count)


def format_bytes(size_bytes: float, *, exact: bool = False) -> str:
    """A size for people ("4.5 GiB"); with `exact`, one that `parse_bytes` reads back unchanged."""
    if exact:
        whole = int(size_bytes)
        for prefix, scale in reversed(_BINARY.items()):
            if whole and whole % scale == 0:
                return f"{whole // scale}{prefix}B"
        return f"{whole}B"
    return _scaled(size_bytes, [(f"{p}B", float(n)) for p, n in reversed(_BINARY.items())], "B")


def format_seconds(seconds: float, *, exact: bool = False) -> str:
    """A span for people ("35.25 ms"); with `exact`, one that `parse_seconds` reads back unchanged."""
    if exact:
        span = Decimal(repr(float(seconds)))
        for unit in ("d", "h", "min", "s", "ms", "us", "ns"):
            count = span / _TIME_UNITS[unit]
            if span and count == count.to_integral_value():
                return f"{int(count)}{unit}"
        return f"{span.normalize():f}s"
    if math.isfinite(seconds) and abs(seconds) >= 120:
        units = [("d", 86400.0), ("h", 3600.0), ("min", 60.0)]
    else:
        units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)]
    return _scaled(seconds, units, "s")


def format_rate(bytes_per_second: float) -> str:
    """A rate for people: "4.464 GiB/s"."""
    return f"{format_bytes(bytes_per_second)}/s"


def _split(value: object, name: str, units: dict[str, Decimal], example: str) -> tuple[Decimal, Decimal]:
    """The number and the scale of its unit, both exact."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}: {value!r} is not an amount; write {example}")
    text = value.strip()
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{name}: cannot read {value!r}; write {example}")
    number, unit = match["number"], match["unit"]
    if unit not in units:
        raise ConfigError(f"{name}: {_unit_problem(text, number, unit, units)}; write {example}")
    return Decimal(number.replace("_", "")), units[unit]


def _finite(amount: Decimal, value: object, name: str) -> float:
    number = float(amount)
    if not math.isfinite(number):
        raise ConfigError(f"{name}: {str(value)[:40]!r} is beyond any measure; write a smaller amount")
    return number


def _unit_problem(text: str, number: str, unit: str, units: dict[str, Decimal]) -> str:
    if not unit:
        return f"{text!r} has no unit"
    alike = [known for known in units if known.lower() == unit.lower()]
    if unit == "m" and "min" in units:
        return "'m' could be minutes or thousandths (min, ms)"
    if unit in ("KB", "K") and f"k{unit[1:]}" in units:
        return f"{unit!r} could be thousands (k{unit[1:]}) or 1,024s (Ki{unit[1:]})"
    if "/" in next(iter(units)) and f"{unit}/s" in units:
        return f"{text!r} is a size, not a rate ({number}{unit}/s)"
    if unit.endswith("bps") and f"{unit[:-3]}bit/s" in units:
        return f"{unit!r} could be bits or bytes ({unit[:-3]}bit/s, {unit[:-3]}B/s)"
    if alike:
        return f"unknown unit {unit!r} (case decides: {' or '.join(alike)})"
    return f"unknown unit {unit!r}"


def _scaled(value: float, units: list[tuple[str, float]], smallest: str) -> str:
    """`value` in the first unit that it fills, in four significant digits."""
    if not math.isfinite(value):
        return str(value)
    for unit, scale in units:
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{_digits(value)} {smallest}" if value == 0 or smallest == "B" else f"{value:.3g} {smallest}"


def _digits(value: float) -> str:
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text == "-0" else text


def counted(count: int, what: str) -> str:
    """A count with what it counts, as in a sentence: "1 request", "3,000 requests"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
