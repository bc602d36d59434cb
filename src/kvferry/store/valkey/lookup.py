"""The question behind `find`, and its answer, at C speed.

A thousand keys ask four thousand things of the server (is it there, is it leased, was it published: twice),
in one round trip. Owns the building of that request and the reading of its replies by whole arrays, since
a Python call per reply would cost more than the server does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import TierUnavailable
from .connection import Connection, command

__all__ = ["Answers", "absent_in", "question", "read_answers"]

_END = b"kvferry-end"
_END_REPLY = b"$%d\r\n%b\r\n" % (len(_END), _END)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the server says of each key."""

    held: bytes
    """1 where the block is there."""
    leased: Sequence[bool]
    young: Sequence[int]
    """The key's word of the filter's young generation."""
    old: Sequence[int]


def question(
    block: bytes, lease: bytes, young: bytes, old: bytes, keys: Sequence[bytes], words: Sequence[int]
) -> bytes:
    """EXISTS for every block, MGET of the leases, the filter's words of both generations, and an end mark."""
    size = len(keys[0])
    if all(len(key) == size for key in keys):
        exists = _joined(b"*2\r\n$6\r\nEXISTS\r\n$%d\r\n%b" % (len(block) + size, block), keys)
        leases = _joined(b"$%d\r\n%b" % (len(lease) + size, lease), keys)
        mget = b"*%d\r\n$4\r\nMGET\r\n%b" % (len(keys) + 1, leases)
    else:
        exists = b"".join([command(b"EXISTS", block + key) for key in keys])
        mget = command(b"MGET", *[lease + key for key in keys])
    offsets = [b"#%d" % word for word in words]
    fields = b"".join([b"$3\r\nGET\r\n$3\r\ni64\r\n$%d\r\n%b\r\n" % (len(o), o) for o in offsets])
    bits = [
        b"*%d\r\n$11\r\nBITFIELD_RO\r\n$%d\r\n%b\r\n%b" % (2 + 3 * len(keys), len(name), name, fields)
        for name in (young, old)
    ]
    return b"".join((exists, mget, *bits, command(b"ECHO", _END)))


def read_answers(connection: Connection, count: int) -> Answers:
    """Read the replies to `question` for `count` keys; an error reply raises `TierUnavailable`."""
    data = connection.receive_some()
    while not data.endswith(_END_REPLY):
        if data.startswith(b"-") and b"\r\n" in data:
            # A server that refuses everything (login, loading) refuses to say the end mark, too.
            raise _refused(data.partition(b"\r\n")[0])
        data += connection.receive_some()
    lines = data.split(b"\r\n")
    held = b"".join(lines[:count]).translate(_DIGITS, b":")
    at = count
    at = _array_of(count, lines, at)
    leased = [False] * count
    if lines[at : at + count].count(b"$-1") == count:
        at += count
    else:
        for i in range(count):
            leased[i] = lines[at] != b"$-1"
            at += 2 if leased[i] else 1
    at = _array_of(count, lines, at)
    young = [int(line[1:]) for line in lines[at : at + count]]
    at = _array_of(count, lines, at + count)
    old = [int(line[1:]) for line in lines[at : at + count]]
    return Answers(held, leased, young, old)


def absent_in(found: bytes | bytearray) -> Iterator[int]:
    """Positions of zero bytes."""
    at = found.find(0)
    while at >= 0:
        yield at
        at = found.find(0, at + 1)


_DIGITS = bytes.maketrans(b"01", b"\x00\x01")


def _joined(head: bytes, keys: Sequence[bytes]) -> bytes:
    """`head` in front of and a line end behind each key."""
    return head + (b"\r\n" + head).join(keys) + b"\r\n"


def _array_of(count: int, lines: Sequence[bytes], at: int) -> int:
    """Where the elements of the array at line `at` begin; anything else than an array is an error."""
    for line in lines:
        if line[:1] == b"-":
            raise _refused(line)
        if line[:1] == b"*":
            break
    if lines[at] != b"*%d" % count:
        raise TierUnavailable(f"unexpected reply to a lookup: {lines[at][:64]!r}")
    return at + 1


def _refused(line: bytes) -> TierUnavailable:
    return TierUnavailable(f"the server refused a lookup: {line[1:].decode('utf-8', 'replace')}")
