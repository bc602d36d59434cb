"""SET of a batch of values, each sent as soon as it is known, with the answers read behind.

Owns the pipeline. Values are taken one by one, so that a checksum made while taking them overlaps with the
server's work on the one before. Refuses to know of deadlines (the connection's) and of ghosts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..tier import Put, Vector
from .connection import Connection, Reply, ServerError, command

__all__ = ["write_values"]

log = logging.getLogger(__name__)

_UNANSWERED_BYTES = 32 << 20
"""Sent ahead of the answers: enough to never wait, too little to send much to a server that is full."""


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
    answered, ahead = 0, 0
    sizes: list[int] = []
    for name, parts in zip(names, values, strict=True):
        size = sum(part.nbytes for part in parts)
        head = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, size)
        connection.send([head, *parts, tail])
        sizes.append(size)
        ahead += size
        while ahead > _UNANSWERED_BYTES and answered < len(sizes) - 1:
            statuses[answered] = _stored(replies.reply())
            ahead -= sizes[answered]
            answered += 1
        if answered and statuses[answered - 1] == Put.FULL:
            # The server evicts before it refuses: it would refuse the rest as well.
            statuses[len(sizes) :] = bytes([Put.FULL]) * (len(names) - len(sizes))
            break
    meanwhile()
    for i in range(answered, len(sizes)):
        statuses[i] = _stored(replies.reply())
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
