"""A Valkey server (or Redis 6.2 and later) as a tier.

Owns the names of keys on the server and the commands behind each call of the contract. Every batch is
pipelined over one connection: one round trip.

    <prefix>b:<key>      a block; always with a TTL, so that the server's volatile-* policy may evict it
    <prefix>l:<name>     a lease: the holder, with a TTL
    <prefix>n:<name>     a note; no TTL, never evicted by volatile-*
    <prefix>g:...        what was published, evicted or not (`published`); no TTL
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ...clock import Clock, MonotonicClock
from ...errors import TierTimeout, TierUnavailable
from ..arrival import Arrived
from ..bloom import mask_of
from ..tier import Entry, Found, Got, Kind, Put, Usage, Vector
from .connection import ABSENT, WRONG_LENGTH, Connection, Reply, ServerError, command
from .lookup import Answers, absent_in, question, read_answers
from .pool import ConnectionPool
from .published import Published
from .replies import array_of, info_of, integer, sound
from .writing import write_values

__all__ = ["ValkeyTier"]

log = logging.getLogger(__name__)

_GET_WINDOW_BYTES = 16 << 20
"""Values asked for ahead of the one being read: enough to never wait, too little to swell the server."""
_DAY = 86_400.0
_MOST_OWED = 1 << 14
_HELD = bytes.maketrans(b"\x01", bytes([Found.HELD]))

_LEASE = b"""
local got = {}
for i, name in ipairs(KEYS) do
  if redis.call('SET', name, ARGV[1], 'NX', 'PX', ARGV[2]) then got[i] = 1
  elseif redis.call('GET', name) == ARGV[1] then redis.call('PEXPIRE', name, ARGV[2]); got[i] = 1
  else got[i] = 0 end
end
return got
"""
_RELEASE = b"""
local n = 0
for _, name in ipairs(KEYS) do
  if redis.call('GET', name) == ARGV[1] then n = n + redis.call('DEL', name) end
end
return n
"""


class ValkeyTier:
    """Blocks on the server at `host:port`.

    `ttl_seconds` is the life of a block whose publisher names none. `ghost_keys` is how many published
    keys each generation of the filter remembers; the filter takes 4 bytes a key on the server.
    `connect_seconds` bounds a connection attempt even when the call has more time.
    """

    kind = Kind.POOL

    def __init__(
        self,
        host: str,
        port: int,
        *,
        database: int = 0,
        username: str | None = None,
        password: str | None = None,
        prefix: str = "kvferry:",
        name: str = "valkey",
        ttl_seconds: float = 7 * _DAY,
        ghost_keys: int = 1 << 19,
        connect_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._ttl_seconds = ttl_seconds
        self._pool = ConnectionPool(
            host,
            port,
            clock or MonotonicClock(),
            database=database,
            username=username,
            password=password,
            connect_seconds=connect_seconds,
        )
        root = prefix.encode()
        self._block, self._lease, self._note = root + b"b:", root + b"l:", root + b"n:"
        self._published = Published(root + b"g:", ghost_keys)
        self._advised = False
        self._owed: deque[bytes] = deque(maxlen=_MOST_OWED)
        """Keys of puts that were cut off: perhaps on the server, and not in its filter."""

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        if not keys:
            return b""
        published = self._published
        asked = question(
            self._block, self._lease, published.young, published.old, keys, published.words(keys)
        )

        def exchange(connection: Connection) -> Answers:
            connection.send([asked])
            return read_answers(connection, len(keys))

        answers = self._pool.run(timeout_seconds, exchange)
        found = bytearray(answers.held.translate(_HELD))
        for i in absent_in(found):
            young, old = answers.young[i], answers.old[i]
            if answers.leased[i]:
                found[i] = Found.LEASED
            elif young or old:
                mask = mask_of(keys[i])
                if young & mask == mask or old & mask == mask:
                    found[i] = Found.GHOST
        return bytes(found)

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        return self.get_telling(keys, into, timeout_seconds, _unheard)

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        statuses = bytearray([Got.FAILED]) * len(keys)
        if not keys:
            return b""
        if len(into) != len(keys):
            # An answer that nobody reads would be taken for that to the next question.
            raise ValueError(f"{len(keys)} keys for {len(into)} buffers")
        sizes = [sum(part.nbytes for part in parts) for parts in into]
        window = max(2, _GET_WINDOW_BYTES // max(1, max(sizes)))
        requests = [command(b"GET", self._block + key) for key in keys]

        def exchange(connection: Connection) -> None:
            asked = 0
            for i, parts in enumerate(into):
                if asked - i <= window // 2 and asked < len(requests):
                    more = requests[asked : i + window]
                    connection.send([b"".join(more)])
                    asked += len(more)
                try:
                    outcome = connection.read_into(parts, sizes[i])
                except ServerError as error:
                    log.warning("tier %s: GET: %s", self.name, error)
                    # A name of another type is one bad block, and no reason to leave the server alone.
                    statuses[i] = Got.CORRUPT if str(error).startswith("WRONGTYPE") else Got.FAILED
                    done[0] = i + 1
                    continue
                if outcome == ABSENT:
                    statuses[i] = Got.ABSENT
                elif outcome == WRONG_LENGTH:
                    statuses[i] = Got.CORRUPT
                else:
                    statuses[i] = Got.OK
                    arrived(i)
                done[0] = i + 1

        done = [0]
        try:
            self._pool.run(timeout_seconds, exchange)
        except TierTimeout:
            for i in range(done[0], len(keys)):
                statuses[i] = Got.LATE
        except TierUnavailable as error:
            log.warning("tier %s: %s", self.name, error)
        return bytes(statuses)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
    ) -> bytes:
        if not keys:
            return b""
        ttl = self._ttl_seconds if ttl_seconds is None else ttl_seconds
        names = [self._block + key for key in keys]
        statuses = bytearray([Put.FAILED]) * len(keys)
        owed: list[bytes] = []
        unmarked: list[bytes] = []

        def exchange(connection: Connection) -> None:
            # Called again where an idle connection turns out to be dead: what was taken then is still owed.
            owed.extend([self._owed.popleft() for _ in range(len(self._owed))])
            unmarked[:] = [*owed, *keys]
            self._advise(connection)
            made: list[bytes] = []
            write_values(
                connection,
                names,
                values,
                ttl,
                statuses,
                lambda: made.append(self._published.request(unmarked)),
            )
            new = [key for key, s in zip(keys, statuses, strict=True) if s == Put.STORED]
            self._published.add(connection, owed + new, made[0] if len(new) == len(keys) else None)

        try:
            self._pool.run(timeout_seconds, exchange)
        except (TierTimeout, TierUnavailable):
            # The filter may know a key too many, never one too few: the next put tells it of all these.
            self._owed.extend(unmarked)
            if not any(status == Put.STORED for status in statuses):
                raise
        return bytes(statuses)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        if not keys:
            return 0

        def exchange(connection: Connection) -> int:
            connection.send([b"".join([command(b"UNLINK", self._block + key) for key in keys])])
            replies = connection.read_replies(len(keys))
            dropped = [key for key, reply in zip(keys, replies, strict=True) if integer(reply)]
            if ghost:
                self._published.add(connection, dropped)
            return len(dropped)

        return self._pool.run(timeout_seconds, exchange)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        if not names:
            return b""
        keys = [self._lease + name for name in names]
        milliseconds = b"%d" % max(1, round(ttl_seconds * 1000))
        script = command(b"EVAL", _LEASE, b"%d" % len(keys), *keys, _text(holder), milliseconds)

        def exchange(connection: Connection) -> Reply:
            connection.send([script])
            return connection.read_replies(1)[0]

        reply = self._pool.run(timeout_seconds, exchange)
        if isinstance(reply, ServerError) and "OOM" in str(reply):
            # Leases only spare work. A server without room for one refuses blocks as well, and can be read.
            return b"\x01" * len(names)
        return bytes(integer(taken) for taken in array_of(len(names), reply))

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        if names:
            keys = [self._lease + name for name in names]
            self._ask(
                [command(b"EVAL", _RELEASE, b"%d" % len(keys), *keys, _text(holder))], timeout_seconds, 1
            )

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        (reply,) = self._ask([command(b"GET", self._note + name.encode())], timeout_seconds, 1)
        if reply is None or isinstance(reply, bytes):
            return reply
        raise TierUnavailable(f"tier {self.name}: unexpected reply {reply!r}")

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        condition = (b"NX",) if if_absent else ()
        request = command(b"SET", self._note + name.encode(), value, *condition)
        (reply,) = self._ask([request], timeout_seconds, 1)
        return reply is not None

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        start = len(self._note)
        return sorted(
            {key[start:].decode() for key in self._names(self._note + prefix.encode(), timeout_seconds)}
        )

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        start = len(self._block)
        names = sorted(set(self._names(self._block, timeout_seconds)))
        for at in range(0, len(names), 1000):
            batch = names[at : at + 1000]
            sizes = self._ask([command(b"STRLEN", name) for name in batch], timeout_seconds, len(batch))
            for name, size in zip(batch, sizes, strict=True):
                if size:
                    yield Entry(name[start:], integer(size))

    def usage(self, timeout_seconds: float) -> Usage:
        sections = [command(b"INFO", name) for name in (b"memory", b"stats", b"keyspace")]
        info = info_of(self._ask(sections, timeout_seconds, 3))
        expiring = sum(
            int(field.partition("=")[2])
            for name, line in info.items()
            if name.startswith("db")
            for field in line.split(",")
            if field.startswith("expires=")
        )
        capacity = int(info.get("maxmemory", 0))
        return Usage(
            capacity_bytes=capacity or None,
            used_bytes=_count(info, "used_memory"),
            blocks=expiring,
            evicted_blocks=_count(info, "evicted_keys"),
            # No request runs on the server; what it needs for itself counts against its maxmemory.
            active_decode_bytes=0,
            reserved_bytes=_count(info, "used_memory_overhead"),
            fragmentation_bytes=_count(info, "mem_fragmentation_bytes"),
        )

    def close(self) -> None:
        self._pool.close()

    def _ask(self, request: Sequence[bytes], timeout_seconds: float, replies: int) -> list[Reply]:
        """Send, read that many replies; an error reply is an unusable server."""

        def exchange(connection: Connection) -> list[Reply]:
            connection.send([b"".join(request)])
            return connection.read_replies(replies)

        answers = self._pool.run(timeout_seconds, exchange)
        for answer in answers:
            sound(answer)
        return answers

    def _names(self, prefix: bytes, timeout_seconds: float) -> Iterator[bytes]:
        pattern = _glob_escaped(prefix) + b"*"
        cursor = b"0"
        while True:
            request = command(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
            (reply,) = self._ask([request], timeout_seconds, 1)
            after, names = array_of(2, reply)
            if not isinstance(after, bytes) or not isinstance(names, list):
                raise TierUnavailable(f"tier {self.name}: unexpected reply to SCAN")
            yield from (name for name in names if isinstance(name, bytes))
            cursor = after
            if cursor == b"0":
                return

    def _advise(self, connection: Connection) -> None:
        """Once: tell the operator when the server may evict what must stay, or never evicts."""
        if self._advised:
            return
        self._advised = True
        connection.send([command(b"INFO", b"memory")])
        info = info_of(connection.read_replies(1))
        policy = info.get("maxmemory_policy", "")
        if info.get("maxmemory") == "0":
            log.warning("tier %s: the server has no maxmemory and may fill its machine; set one", self.name)
        elif policy and not policy.startswith("volatile-"):
            log.warning(
                "tier %s: the server's maxmemory-policy is %s; set volatile-lru or volatile-lfu, "
                "so that blocks are evicted while notes stay",
                self.name,
                policy,
            )


def _text(holder: bytes) -> bytes:
    """A holder as one line, as the lookup's reader expects."""
    return holder.hex().encode()


def _count(info: Mapping[str, str], field: str) -> int | None:
    """A field of INFO that is an amount; None where this server does not tell."""
    return max(0, int(info[field])) if field in info else None


def _glob_escaped(text: bytes) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in text)


def _unheard(index: int) -> None:
    """For readers that wait for the whole batch."""
