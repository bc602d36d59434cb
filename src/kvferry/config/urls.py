"""URLs in settings: which schemes exist, and how a URL is shown without its password.

Refuses to know what a URL's rest means: opening one is the store room's work.
"""

from __future__ import annotations

import re

from ..errors import ConfigError

__all__ = ["POOL_FORMS", "check_address", "check_disk", "check_pool", "hide_password", "split_address"]

POOL_FORMS = {
    "memory": "memory://",
    "files": "files:///DIR",
    "valkey": "valkey://HOST:PORT",
    "redis": "redis://HOST:PORT",
    "s3": "s3://BUCKET/PREFIX",
    "plugin": "plugin://MODULE/CLASS",
}
"""Every scheme of a pool, with the form to write."""

_PASSWORD = re.compile(r"(://[^/@:]*:)[^/]*(@)")


def check_pool(url: str, name: str) -> None:
    """Raise `ConfigError` unless the URL's scheme is known and it names a place."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in POOL_FORMS:
        problem = f"unknown scheme {scheme!r}" if colon else "the URL has no scheme"
        raise ConfigError(f"{name}: {problem}; write one of {', '.join(POOL_FORMS.values())}")
    if scheme != "memory" and not rest.strip("/"):
        raise ConfigError(f"{name}: {url!r} names no place; write {POOL_FORMS[scheme]}")


def check_disk(url: str, name: str) -> None:
    """Raise `ConfigError` unless this is the URL of a folder."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme != "files" or not rest.strip("/"):
        raise ConfigError(f"{name}: this is not a folder's URL; write {POOL_FORMS['files']}")


def check_address(address: str, name: str) -> None:
    """Raise `ConfigError` unless this is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{name}: {address!r} is no address; write HOST:PORT, as 127.0.0.1:9400")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of a checked address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def hide_password(url: str) -> str:
    """The URL with `***` where its password stands."""
    return _PASSWORD.sub(r"\1***\2", url)
