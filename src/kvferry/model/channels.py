"""Channels that KV may cross, with where each figure comes from.

These are for the back of an envelope. None of them is a measurement of yours, and the gate never sees them:
it learns its links' rates itself.
"""

from __future__ import annotations

import msgspec

from ..errors import UsageError
from ..units import parse_rate

__all__ = ["AUTHORS", "CHANNELS", "CODECS", "Channel", "Codec", "parse_channel"]

AUTHORS = "authors' figure"


class Channel(msgspec.Struct, frozen=True):
    """One link."""

    name: str
    bytes_per_second: float
    source: str
    """Where the figure comes from: line rate, the maker, its authors, the user."""


class Codec(msgspec.Struct, frozen=True):
    """One way to write the numbers of a KV cache; scales are not counted."""

    name: str
    bytes_per_number: float


CHANNELS: tuple[Channel, ...] = (
    Channel("25 GbE", 3.1e9, "line rate"),
    Channel("100 GbE", 12.5e9, "line rate"),
    Channel("200 Gb RDMA", 25e9, "line rate"),
    Channel("400 Gb RDMA", 50e9, "line rate"),
    # RDMA over four Thunderbolt cables, point to point, 8 us; at 191 Gbit/s no name of a cable fits it.
    Channel("MCDMA", 23.9e9, AUTHORS),
    Channel("PCIe 4 x16", 31.5e9, "line rate"),
    Channel("PCIe 5 x16", 63e9, "line rate"),
    Channel("NVMe", 7e9, "maker's figure for one PCIe 4 drive, reading"),
    Channel("S3", 1.25e9, "10 Gbit/s of an instance; requests not counted"),
)

CODECS: tuple[Codec, ...] = (Codec("16 bit", 2.0), Codec("int8", 1.0), Codec("int4", 0.5))


def parse_channel(text: str) -> Channel:
    """`name=12.5GB/s`. Raises `UsageError` or `ConfigError`."""
    name, sign, rate = text.partition("=")
    if not sign or not name.strip():
        raise UsageError(f"--channel: cannot read {text!r}; write a name and a rate, such as lab=12.5GB/s")
    return Channel(name.strip(), parse_rate(rate, f"--channel {name.strip()}"), "given")
