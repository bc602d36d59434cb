"""From a pool's address to a tier.

Owns the schemes and their options; the only place that maps names to tiers. A tier's module is imported
when its scheme is asked for.

    memory://?capacity=1GiB&policy=lru      (or s3fifo, gdsf)
    files:///DIR?capacity=100GiB&unread=1h      (alias files:DIR, which may be relative)
    valkey://user:password@host:6379/0?ttl=24h      (alias redis://)
    plugin://package.module/Class?option=value
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..clock import Clock, MonotonicClock
from ..errors import ConfigError, KvferryError
from ..units import format_bytes, parse_bytes, parse_seconds
from .tier import Kind, Tier

__all__ = ["SCHEMES", "open_tier"]

Options = dict[str, Any]


def open_tier(
    url: str,
    *,
    clock: Clock | None = None,
    capacity_bytes: int | None = None,
    setting: str = "pool",
    **options: Any,
) -> Tier:
    """Open the tier at `url`.

    Options stand in the address's query (`capacity`, `ttl`, `name`, `kind`, `ghosts`, `connect`, ...) or are
    given as keywords in the tier's own words (`ttl_seconds`, `ghost_keys`, ...); the address wins.
    `setting` names the setting that the address came from, for errors. Raises `ConfigError` for an address
    that makes no sense, `MissingExtra` for a part that is not installed and `StoreError` when the tier
    cannot be opened.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        # Not the address itself: its password cannot be told from the rest.
        raise ConfigError(f"{setting}: not an address ({error}); write valkey://host:6379/0") from error
    opener = SCHEMES.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"{setting}: {_hidden(url)!r} has no known scheme; write one of {known}")
    given: Options = {**options}
    if capacity_bytes is not None:
        given["capacity_bytes"] = capacity_bytes
    given["clock"] = clock or MonotonicClock()
    return opener(parts, given, setting)


def _memory(parts: SplitResult, options: Options, setting: str) -> Tier:
    from .memory import MemoryTier

    options |= _query(parts, {**_SIZED, "slot": ("slot_bytes", _bytes), "policy": ("policy", _text)}, setting)
    if parts.netloc or parts.path:
        raise ConfigError(f"{setting}: memory:// takes no path; write memory://?capacity=1GiB")
    if "capacity_bytes" not in options:
        raise ConfigError(f"{setting}: memory:// needs a capacity; write memory://?capacity=1GiB")
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if options["capacity_bytes"] > there:
        raise ConfigError(
            f"{setting}: {format_bytes(options['capacity_bytes'])} is more memory than the "
            f"{format_bytes(there)} of this machine; write a smaller capacity"
        )
    return _made(MemoryTier, (), options, setting)


def _files(parts: SplitResult, options: Options, setting: str) -> Tier:
    from .files import FilesTier

    options |= _query(parts, _SIZED, setting)
    if parts.netloc:
        raise ConfigError(
            f"{setting}: {parts.netloc!r} in files://{parts.netloc}{parts.path} is taken for a host; "
            f"write files:///{parts.netloc}{parts.path} or files:{parts.netloc}{parts.path}"
        )
    if not parts.path:
        raise ConfigError(f"{setting}: files: needs a directory; write files:///DIR")
    return _made(FilesTier, (unquote(parts.path),), options, setting)


def _valkey(parts: SplitResult, options: Options, setting: str) -> Tier:
    from .valkey import ValkeyTier

    options |= _query(parts, _SERVED, setting)
    if "capacity_bytes" in options:
        raise ConfigError(f"{setting}: the capacity of a Valkey server is its own maxmemory; set it there")
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}; write valkey://host:6379/0") from error
    if not parts.hostname:
        raise ConfigError(f"{setting}: no host in {parts.scheme}://; write valkey://host:6379/0")
    database = parts.path.strip("/") or "0"
    if not database.isdigit():
        raise ConfigError(f"{setting}: {database!r} is no database number; write valkey://host:6379/0")
    options["database"] = int(database)
    options["username"] = unquote(parts.username) if parts.username else None
    options["password"] = unquote(parts.password) if parts.password else None
    return _made(ValkeyTier, (parts.hostname, port or 6379), options, setting)


def _objects(parts: SplitResult, options: Options, setting: str) -> Tier:
    raise ConfigError(
        f"{setting}: s3:// is not served yet; "
        "write valkey://host:6379/0, or files:///DIR on a shared file system"
    )


def _plugin(parts: SplitResult, options: Options, setting: str) -> Tier:
    name = parts.path.strip("/")
    where = f"plugin://{parts.netloc}/{name}"
    if not parts.netloc or not name:
        raise ConfigError(f"{setting}: {where} names no class; write plugin://package.module/Class")
    try:
        factory = getattr(importlib.import_module(parts.netloc), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{setting}: {where}: {error}; write plugin://package.module/Class") from error
    except Exception as error:  # whatever somebody else's module may raise
        raise ConfigError(f"{setting}: {where} cannot be imported: {error!r}") from error
    try:
        tier = _made(factory, (), {**options, **dict(parse_qsl(parts.query))}, setting)
    except KvferryError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting}: {where} cannot be made: {error!r}") from error
    if not isinstance(tier, Tier):
        missing = [method for method in _MEMBERS if not hasattr(tier, method)]
        raise ConfigError(f"{setting}: {where} is not a tier: it has no {', '.join(missing)}")
    return tier


SCHEMES: Mapping[str, Callable[[SplitResult, Options, str], Tier]] = {
    "memory": _memory,
    "files": _files,
    "valkey": _valkey,
    "redis": _valkey,
    "s3": _objects,
    "plugin": _plugin,
}

_MEMBERS = tuple(dict.fromkeys(["name", "kind", *(n for n in vars(Tier) if not n.startswith("_"))]))


def _made(factory: Callable[..., Tier], arguments: tuple[Any, ...], options: Options, setting: str) -> Tier:
    try:
        inspect.signature(factory).bind(*arguments, **options)
    except TypeError as error:
        name = getattr(factory, "__name__", str(factory))
        raise ConfigError(f"{setting}: {name}: {error}; see its documentation for its options") from error
    return factory(*arguments, **options)


def _bytes(text: str, setting: str) -> int:
    return parse_bytes(text, setting)


def _seconds(text: str, setting: str) -> float:
    return parse_seconds(text, setting)


def _count(text: str, setting: str) -> int:
    if not text.isdigit() or text == "0":
        raise ConfigError(f"{setting}: {text!r} is not a number of keys; write 524288")
    return int(text)


def _text(text: str, setting: str) -> str:
    return text


def _kind(text: str, setting: str) -> Kind:
    try:
        return Kind(text)
    except ValueError as error:
        raise ConfigError(
            f"{setting}: {text!r} is no kind of tier; write one of {', '.join(Kind)}"
        ) from error


Readers = dict[str, tuple[str, Callable[[str, str], Any]]]

_COMMON: Readers = {
    "name": ("name", _text),
    "ttl": ("ttl_seconds", _seconds),
    "ghosts": ("ghost_keys", _count),
}
_SIZED: Readers = {
    **_COMMON,
    "kind": ("kind", _kind),
    "capacity": ("capacity_bytes", _bytes),
    "unread": ("unread_seconds", _seconds),
}
_SERVED: Readers = {**_COMMON, "prefix": ("prefix", _text), "connect": ("connect_seconds", _seconds)}


def _query(parts: SplitResult, readers: Readers, setting: str) -> Options:
    """The address's options in the tier's words."""
    options = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in readers:
            raise ConfigError(
                f"{setting}: {parts.scheme}: has no option {name!r}; it takes {', '.join(sorted(readers))}"
            )
        word, read = readers[name]
        options[word] = read(text, f"{setting}: option {name}")
    return options


def _hidden(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = parts.username or ""
    return url.replace(f"{user}:{parts.password}@", f"{user}:***@", 1)
