"""Recording vLLM's KV events: from its ZMQ socket into a file of keyed hashes.

The file, version 1: a header {"kvferry_vllm_events": 1, "block_tokens": B}, then one line an event:

    {"t": wall seconds, "rank": r, "stored": [key, ...], "parent": key, "medium": "GPU", "session": hash}
    {"t": wall seconds, "rank": r, "removed": [key, ...], "medium": "GPU"}
    {"t": wall seconds, "rank": r, "cleared": true}
    {"t": wall seconds, "lost": batches}

Keys are 32 hex digits; a parent that is left out is the prompt's beginning. Owns this file's writing and the
socket's reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from ...errors import FormatError, KvferryError, MissingExtra
from ..lines import LineWriter
from .events import Cleared, Event, Removed, Stored, decode_batch
from .rekey import Rekeying

__all__ = ["EVENTS_VERSION", "EventHeader", "EventLine", "EventRecorder", "record_events"]

EVENTS_VERSION = 1

_log = logging.getLogger(__name__)


class EventHeader(msgspec.Struct, frozen=True):
    """The first line."""

    version: int = msgspec.field(name="kvferry_vllm_events")
    block_tokens: int


class EventLine(msgspec.Struct, omit_defaults=True, gc=False):
    """One event."""

    t: float
    """Wall clock, seconds."""
    rank: int = 0
    stored: list[str] = []
    parent: str | None = None
    removed: list[str] = []
    cleared: bool = False
    lost: int = 0
    """Batches that never arrived."""
    medium: str = "GPU"
    session: str = ""
    """Keyed hash of the client's id."""


class EventRecorder:
    """Turns messages of one engine into lines of a file. Not for use from two threads."""

    def __init__(self, path: Path, secret: bytes, *, overwrite: bool = False) -> None:
        self._writer = LineWriter(path, overwrite=overwrite)
        self._keys = Rekeying(secret)
        self._block_tokens: int | None = None
        self._group: int | None = None
        self._sequence: int | None = None
        self.events = 0
        self.lost = 0
        self.refused = 0

    def message(self, sequence: int, payload: bytes) -> None:
        """Take one message. One that does not parse is counted and logged: the engine goes on."""
        self._notice_gap(sequence)
        try:
            batch = decode_batch(payload)
        except FormatError as error:
            self.refused += 1
            _log.warning("message %d left out: %s", sequence, error)
            return
        for event in batch.events:
            try:
                self._event(batch.seconds, batch.rank, event)
            except FormatError as error:
                self.refused += 1
                _log.warning("an event of message %d left out: %s", sequence, error)

    def flush(self) -> None:
        """What was recorded so far can be read."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close. Calling it twice is fine."""
        self._writer.close()

    def __enter__(self) -> EventRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _event(self, seconds: float, rank: int, event: Event) -> None:
        line = EventLine(seconds, rank)
        match event:
            case Stored():
                if self._group is None:
                    self._group = event.group
                if event.group != self._group:
                    return  # the same tokens once more
                if self._block_tokens is None:
                    self._block_tokens = event.block_tokens
                    self._writer.append(EventHeader(EVENTS_VERSION, event.block_tokens))
                if event.block_tokens != self._block_tokens:
                    raise FormatError(
                        f"blocks of {event.block_tokens} tokens among blocks of {self._block_tokens}"
                    )
                parent, keys = self._keys.stored(event)
                line.parent = None if parent is None else parent.hex()
                line.stored = [key.hex() for key in keys]
                line.medium = event.medium
                line.session = self._keys.session(event.session) if event.session else ""
            case Removed():
                line.removed = [key.hex() for key in self._keys.removed(event.hashes)]
                line.medium = event.medium
                if not line.removed:
                    return
            case Cleared():
                line.cleared = True
        if self._block_tokens is not None:
            self._writer.append(line)
            self.events += 1

    def _notice_gap(self, sequence: int) -> None:
        expected = None if self._sequence is None else self._sequence + 1
        self._sequence = sequence
        if expected is None or sequence <= expected:
            return  # the first, the next, or the engine was started anew and counts from 0
        missing = sequence - expected
        self.lost += missing
        _log.warning("%d batches of events were lost before number %d", missing, sequence)
        if self._block_tokens is not None:
            self._writer.append(EventLine(time.time(), lost=missing))


def record_events(
    endpoint: str,
    recorder: EventRecorder,
    stop: Callable[[], bool],
    *,
    topic: str = "",
    poll_seconds: float = 0.2,
) -> None:
    """Subscribe to an engine's events ("tcp://127.0.0.1:5557") and record until `stop()` says so.

    Raises `MissingExtra` without pyzmq.
    """
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra("recording vLLM's KV events", "events") from error
    context: Any = zmq.Context()
    socket: Any = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # an unread queue must not drop what the engine says
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise KvferryError(f"{endpoint}: cannot connect: {error}") from error
        while not stop():
            if not socket.poll(int(poll_seconds * 1000)):
                recorder.flush()
                continue
            frames = socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                recorder.refused += 1
                continue
            recorder.message(int.from_bytes(frames[1], "big"), frames[2])
    finally:
        recorder.flush()
        socket.close()
        context.term()
