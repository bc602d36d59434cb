"""`kvferry store`: what a pool holds, whether it is whole, and how to empty it.

Owns the reading commands over a tier. Data goes to stdout, progress to stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from ..errors import ConfigError, FormatError, UsageError
from ..store.files import FilesTier
from ..store.frame import HEADER_BYTES, Codec, Flaw, flaw_of, parse
from ..store.namespaces import others
from ..store.open import open_tier
from ..store.tier import Entry, Got, Tier
from ..units import format_bytes, parse_seconds
from .output import Json, write_columns, write_json

__all__ = ["app"]

app = App(name="store", help="What a pool holds: stat, ls, verify, sweep, purge.")

Timeout = Annotated[str, Parameter(help="Time for each call to the pool, such as 10s.")]
Namespace = Annotated[
    str | None, Parameter(help="Only blocks of this namespace: its digest in hex, or the beginning of it.")
]

_BATCH = 64

_TERMS = {
    "pool": "pool",
    "kind": "kind",
    "blocks": "blocks",
    "used_bytes": "used",
    "capacity_bytes": "C physical",
    "active_decode_bytes": "- C active decode",
    "reserved_bytes": "- C reserved",
    "fragmentation_bytes": "- C fragmentation",
    "effective_bytes": "= C effective",
    "evicted_blocks": "evicted blocks",
    "evicted_read_blocks": "  read before",
    "evicted_unread_blocks": "  never read",
    "evicted_unread_bytes": "bytes evicted unread",
    "unread_bytes": "bytes held unread",
    "never_read_bytes": "bytes never read",
}
"""What `stat` shows, in this order, and what it calls it."""


@app.command
def stat(pool: str, *, json: Json = False, timeout: Timeout = "10s") -> None:
    """Capacity and what it is really worth, use, waste and namespaces of a pool.

    A term that the pool cannot tell is shown as unknown, never as 0.

    Parameters
    ----------
    pool
        The pool's address: files:///DIR or valkey://host:6379/0.
    """
    with _opened(pool, timeout) as (tier, seconds):
        usage = tier.usage(seconds)
        unread_bytes = _unread(tier, seconds) if usage.unread_bytes is None else usage.unread_bytes
        namespaces = others(tier, seconds)
    never_read = usage.evicted_unread_bytes
    answer: dict[str, Any] = {
        "pool": tier.name,
        "kind": tier.kind.value,
        **msgspec.structs.asdict(usage),
        "unread_bytes": unread_bytes,
        "evicted_read_blocks": None
        if usage.evicted_blocks is None or usage.evicted_unread_blocks is None
        else usage.evicted_blocks - usage.evicted_unread_blocks,
        "never_read_bytes": None if never_read is None or unread_bytes is None else never_read + unread_bytes,
        "effective_bytes": usage.effective_bytes,
        "namespaces": {digest.hex(): fields for digest, fields in namespaces.items()},
    }
    if json:
        write_json(answer)
        return
    rows = [(text, _shown(name, answer[name])) for name, text in _TERMS.items()]
    for digest, fields in namespaces.items():
        rows.append((f"namespace {digest.hex()[:12]}", ", ".join(f"{k}={v}" for k, v in fields.items())))
    write_columns(rows)


@app.command
def sweep(pool: str, *, unread: str, json: Json = False, timeout: Timeout = "60s") -> None:
    """Drop blocks that were published and never read for a while, and those whose life is over.

    A tier does so by itself when it needs room; this gives the room back before.

    Parameters
    ----------
    pool
        The pool's address: files:///DIR.
    unread
        How long a block may wait for its first read, such as 1h.
    """
    unread_seconds = parse_seconds(unread, "--unread")
    with _opened(pool, timeout) as (tier, seconds):
        if not isinstance(tier, FilesTier):
            raise ConfigError(
                f"POOL: a {tier.name} pool sweeps by itself (its server evicts what is least used); "
                "give files:///DIR"
            )
        swept = tier.sweep(seconds, unread_seconds=unread_seconds)
    if json:
        write_json({"swept": swept})
    else:
        print(f"{swept} blocks swept")


@app.command
def ls(pool: str, *, namespace: Namespace = None, json: Json = False, timeout: Timeout = "10s") -> None:
    """The blocks in a pool: key, namespace, codec and size. Reads every block.

    Parameters
    ----------
    pool
        The pool's address: files:///DIR or valkey://host:6379/0.
    """
    wanted = _prefix(namespace)
    rows: list[dict[str, Any]] = []
    with _opened(pool, timeout) as (tier, seconds):
        for entry, value in _values(tier, seconds):
            row = _described(entry, value)
            if (row["namespace"] or "").startswith(wanted):
                rows.append(row)
    if json:
        write_json(rows)
        return
    write_columns(
        [
            (
                row["key"],
                (row["namespace"] or "?")[:12],
                row["codec"] or "?",
                format_bytes(row["value_bytes"]),
            )
            for row in rows
        ],
        right=(3,),
    )


@app.command
def verify(pool: str, *, namespace: Namespace = None, json: Json = False, timeout: Timeout = "10s") -> int:
    """Read every block and check its frame. Exit status 1 when one is not as it was written.

    Reading counts as use: the order in which a tier evicts follows it.

    Parameters
    ----------
    pool
        The pool's address: files:///DIR or valkey://host:6379/0.
    """
    wanted = _prefix(namespace)
    sound = 0
    flawed: list[dict[str, Any]] = []
    with _opened(pool, timeout) as (tier, seconds):
        for entry, value in _values(tier, seconds):
            flaw = _flaw(entry, value)
            if not (_described(entry, value)["namespace"] or wanted).startswith(wanted):
                continue
            if flaw is None:
                sound += 1
            else:
                flawed.append({"key": entry.key.hex(), "value_bytes": entry.value_bytes, "flaw": flaw})
    if json:
        write_json({"sound": sound, "flawed": flawed})
    else:
        write_columns([(row["key"], row["flaw"]) for row in flawed])
        print(f"{sound} blocks are sound, {len(flawed)} are not")
    return 1 if flawed else 0


@app.command
def purge(
    pool: str,
    *,
    namespace: Namespace = None,
    yes: bool = False,
    json: Json = False,
    timeout: Timeout = "10s",
) -> None:
    """Remove every block, or those of one namespace. The notes of namespaces stay.

    Parameters
    ----------
    pool
        The pool's address: files:///DIR or valkey://host:6379/0.
    yes
        Do it. Without this flag nothing is removed.
    """
    wanted = _prefix(namespace)
    with _opened(pool, timeout) as (tier, seconds):
        if wanted:
            doomed = [
                entry
                for entry, value in _values(tier, seconds)
                if (_described(entry, value)["namespace"] or "").startswith(wanted)
            ]
        else:
            doomed = list(tier.scan(seconds))
        size = sum(entry.value_bytes for entry in doomed)
        if not yes:
            raise UsageError(
                f"this would remove {len(doomed)} blocks ({format_bytes(size)}) from {tier.name}; "
                "add --yes to do it"
            )
        keys = [entry.key for entry in doomed]
        dropped = sum(
            tier.drop(keys[i : i + _BATCH], seconds, ghost=False) for i in range(0, len(keys), _BATCH)
        )
    if json:
        write_json({"dropped": dropped, "bytes": size})
    else:
        print(f"{dropped} blocks removed, {format_bytes(size)}")


@contextlib.contextmanager
def _opened(pool: str, timeout: str) -> Iterator[tuple[Tier, float]]:
    seconds = parse_seconds(timeout, "--timeout")
    if pool.startswith("memory:"):
        raise ConfigError(
            "POOL: a memory: pool lives in its process; give files:///DIR or valkey://host:6379/0"
        )
    # Who looks at a pool does not make one: a mistyped directory is not an empty pool.
    options: dict[str, Any] = {"create": False} if pool.startswith("files:") else {}
    with contextlib.closing(open_tier(pool, setting="POOL", **options)) as tier:
        yield tier, seconds


def _unread(tier: Tier, seconds: float) -> int | None:
    """Bytes that are held and were never read; None where the tier does not know of each."""
    total = 0
    for entry in tier.scan(seconds):
        if entry.read is None:
            return None
        total += 0 if entry.read else entry.value_bytes
    return total


def _values(tier: Tier, seconds: float) -> Iterator[tuple[Entry, memoryview | None]]:
    """Every stored value, read whole; None where it went away or could not be read meanwhile."""
    progress = sys.stderr.isatty()
    for count, entry in enumerate(list(tier.scan(seconds)), 1):
        value = memoryview(bytearray(entry.value_bytes))
        status = tier.get([entry.key], [[value]], seconds)[0]
        if progress and count % 100 == 0:
            print(f"\r{count} blocks read", end="", file=sys.stderr)
        if status != Got.ABSENT:
            yield entry, value if status == Got.OK else None
    if progress:
        print("\r\x1b[K", end="", file=sys.stderr)


def _described(entry: Entry, value: memoryview | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": entry.key.hex(),
        "value_bytes": entry.value_bytes,
        "namespace": None,
        "codec": None,
    }
    if value is not None and len(value) >= HEADER_BYTES:
        with contextlib.suppress(FormatError):
            header = parse(value[:HEADER_BYTES])
            row["namespace"] = header.namespace.hex()
            known = {codec.value: codec.name.lower() for codec in Codec}
            row["codec"] = known.get(header.codec, str(header.codec))
    return row


def _flaw(entry: Entry, value: memoryview | None) -> str | None:
    """What is wrong with a stored value, in words."""
    if value is None:
        return "could not be read"
    if len(value) < HEADER_BYTES:
        return Flaw.LENGTH.value
    try:
        header = parse(value[:HEADER_BYTES])
    except FormatError as error:
        return str(error)
    flaw = flaw_of(value[:HEADER_BYTES], value[HEADER_BYTES:], header.namespace, entry.key, header.codec)
    return None if flaw is None else flaw.value


def _prefix(namespace: str | None) -> str:
    text = (namespace or "").lower()
    if text.strip("0123456789abcdef") or namespace == "":
        raise UsageError(f"--namespace: {namespace!r} is not a digest in hex; kvferry store stat lists them")
    return text


def _shown(name: str, value: object) -> str:
    if value is None:
        return "unknown"
    return format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)
