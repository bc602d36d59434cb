"""SET of a batch of values, a window of them at a time, with the answers read behind.

Owns the pipeline. A window is made ready before its first byte goes, so that taking values (which makes
their checksums) never leaves the server waiting in between. Refuses to know of deadlines (the connection's)
and of ghosts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..tier import Put, Vector
from .connection import Connection, Reply, ServerError, command

__all__ = ["write_values"]

log = logging.getLogger(__name__)

_WINDOW_BYTES = 16 << 20
"""Sent at once. Two windows may be unanswered: enough to never wait, too little for a server that is full."""


def write_values(
    connection: Connection,
    names: Sequence[bytes],
    values: Sequence[Vector],
    life_seconds: float,
    statuses: bytearray,
    meanwhile: Callable[[], None],
) -> None:
    """SET each name that is not there yet; fills `statuses` with `Put` bytes as the answers arrive.

    `meanwhile` is called once everything has been sent, while the server is still at work on it.
    """
    life = b"%d" % max(1, round(life_seconds * 1000))
    tail = b"\r\n" + command(b"NX", b"PX", life).partition(b"\r\n")[2]
    replies = connection.replies()
    answered = sent = 0

    def read_answers(until: int) -> None:
        nonlocal answered
        for i in range(answered, until):
            statuses[i] = _stored(replies.reply())
        answered = until

    while sent < len(names):
        pieces: list[bytes | memoryview] = []
        first, ahead = sent, 0
        while sent < len(names) and ahead < _WINDOW_BYTES:
            name, parts = names[sent], values[sent]
            size = sum([part.nbytes for part in parts])
            pieces.append(b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, size))
            pieces.extend(parts)
            pieces.append(tail)
            sent, ahead = sent + 1, ahead + size
        connection.send(pieces)
        if sent < len(names):
            read_answers(first)
            if first and statuses[first - 1] == Put.FULL:
                # The server evicts before it refuses: it would refuse the rest as well.
                statuses[sent:] = bytes([Put.FULL]) * (len(names) - sent)
                break
    meanwhile()
    read_answers(sent)
    replies.finish()


def _stored(reply: Reply) -> Put:
    if reply == b"OK":
        return Put.STORED
    if reply is None:
        return Put.HELD
    if isinstance(reply, ServerError) and str(reply).startswith("OOM"):
        return Put.FULL
    log.warning("the server refused a block: %s", reply)
    return Put.FAILED
