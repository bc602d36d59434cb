"""From an address to the ends of a transport: tcp://HOST:PORT, shm://NAME, or a tier's URL.

`shm://` without a name, and port 0, take a free one; `address` of the listener is what a sender is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from ...clock import Clock
from ...errors import ConfigError
from ...store.open import open_tier
from ...store.tier import Tier
from .contract import Incoming, Outgoing
from .shm import SharedListener, dial_shared
from .tcp import TcpListener, dial_tcp
from .tier import TierListener, TierOutgoing

__all__ = ["Dialer", "Listener", "listen", "open_dialer"]


class Listener(Protocol):
    """Where a receiver waits."""

    def accept(self, deadline: float) -> Incoming:
        """The next connection; raises HandoffFailed."""

    def close(self) -> None:
        """Stop waiting."""


class Dialer:
    """Connects to one address, again and again; `close` lets go of a tier."""

    def __init__(self, connect: Callable[[float], Outgoing], tier: Tier | None = None) -> None:
        self._connect = connect
        self._tier = tier

    def __call__(self, deadline: float) -> Outgoing:
        return self._connect(deadline)

    def close(self) -> None:
        """Close what was opened for the address."""
        if self._tier is not None:
            self._tier.close()


class _OverTier:
    def __init__(self, listener: TierListener, tier: Tier) -> None:
        self._listener, self._tier = listener, tier

    def accept(self, deadline: float) -> Incoming:
        return self._listener.accept(deadline)

    def close(self) -> None:
        self._tier.close()


def listen(
    address: str, *, handoff_id: str, namespace: bytes, secret: bytes, clock: Clock
) -> tuple[Listener, str]:
    """Where to wait at `address`, and the address for a sender. Raises `ConfigError`.

    `handoff_id` and `namespace` (the digest of what crosses) matter for tiers alone.
    """
    parts = urlsplit(address)
    if parts.scheme == "tcp":
        listener = TcpListener(*_host_port(address), clock)
        host = f"[{listener.host}]" if ":" in listener.host else listener.host
        return listener, f"tcp://{host}:{listener.port}"
    if parts.scheme == "shm":
        shared = SharedListener(clock, name=_segment(address) or None)
        return shared, f"shm://{shared.name}"
    tier = _tier(address, handoff_id)
    return _OverTier(TierListener(tier, handoff_id, namespace, secret, clock), tier), address


def open_dialer(
    address: str,
    *,
    handoff_id: str,
    namespace: bytes,
    secret: bytes,
    clock: Clock,
    waits: bool = False,
    ttl_seconds: float = 600.0,
) -> Dialer:
    """How to connect to `address`. Raises `ConfigError`. The last two are for tiers alone."""
    parts = urlsplit(address)
    if parts.scheme == "tcp":
        host, port = _host_port(address)
        return Dialer(lambda deadline: dial_tcp(host, port, deadline, clock))
    if parts.scheme == "shm":
        name = _segment(address)
        if not name:
            raise ConfigError(f"{address}: write the name that the receiver has told, as shm://NAME")
        return Dialer(lambda deadline: dial_shared(name, deadline, clock))
    tier = _tier(address, handoff_id)
    return Dialer(
        lambda _: TierOutgoing(
            tier, handoff_id, namespace, secret, clock, waits=waits, ttl_seconds=ttl_seconds
        ),
        tier,
    )


def _segment(address: str) -> str:
    name = address.removeprefix("shm://")
    if "/" in name:
        raise ConfigError(f"{address}: a segment's name has no slash; write shm://NAME")
    return name


def _host_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{address}: {error}; write tcp://127.0.0.1:4700") from error
    if not parts.hostname or port is None:
        raise ConfigError(f"{address}: write host and port, such as tcp://127.0.0.1:4700")
    return parts.hostname, port


def _tier(address: str, handoff_id: str) -> Tier:
    if not handoff_id:
        raise ConfigError(f"{address}: a hand-off through a tier needs an id that both sides know (--id)")
    return open_tier(address)
