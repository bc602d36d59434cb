"""Which block goes when there is no room: one policy a file, behind one interface, each under `Evictor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import ConfigError
from .chains import Evictor
from .gdsf import GDSF
from .lru import LRU
from .policy import EvictionPolicy
from .s3fifo import S3FIFO

__all__ = ["GDSF", "LRU", "POLICIES", "S3FIFO", "EvictionPolicy", "Evictor", "policy_named"]

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": LRU, "s3fifo": S3FIFO, "gdsf": GDSF}
"""The policies by the names that settings use."""


def policy_named(name: str, setting: str) -> Callable[[], EvictionPolicy]:
    """The maker of a policy; `ConfigError` for a name that is none."""
    try:
        return POLICIES[name]
    except KeyError as error:
        known = ", ".join(POLICIES)
        raise ConfigError(f"{setting}: {name!r} is no eviction policy; write one of {known}") from error
