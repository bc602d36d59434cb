"""What each part of a hand-off took on either side, and which part it waited for.

The parts overlap: the sum of the legs is no measure of the whole, `ready_seconds` is. The link's own time is
what both ends spent in it: a receiver that waits for a slow sender, or a sender held up by a slow receiver,
waits at one end only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ...clock import Clock

__all__ = ["ReceiverLegs", "SenderLegs", "Stopwatch", "dominant_leg", "legs_of"]


class SenderLegs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds on the side that did the prefill."""

    prefill_seconds: float = 0.0
    """From the answer to the last layer; 0 where the prefill was done before the offer."""
    device_to_host_seconds: float = 0.0
    encode_seconds: float = 0.0
    """Gathering and the codec; 0 where raw rows are sent from where they lie."""
    checksum_seconds: float = 0.0
    send_seconds: float = 0.0
    """Handing bytes to the transport, a receiver that holds up included."""
    bytes: int = 0
    """Of payload, in this and earlier attempts."""
    attempts: int = 1


class ReceiverLegs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds on the side that decodes."""

    receive_seconds: float = 0.0
    """Waiting for bytes and reading them, the checksum included."""
    decode_seconds: float = 0.0
    host_to_device_seconds: float = 0.0
    first_layer_seconds: float | None = None
    """From the answer until layer 0 could be attended to."""
    ready_seconds: float | None = None
    """From the answer until the last layer could; None where it never was."""
    bytes: int = 0


class Stopwatch:
    """Adds up the seconds of named parts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Whatever happens inside counts for `part`."""
        began = self._clock.now()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + self._clock.now() - began

    def __getitem__(self, part: str) -> float:
        return self.seconds.get(part, 0.0)


def legs_of(sender: SenderLegs, receiver: ReceiverLegs) -> dict[str, float]:
    """Seconds of each leg, in the order in which a chunk passes them."""
    return {
        "remote_prefill": sender.prefill_seconds,
        "device_to_host": sender.device_to_host_seconds,
        "encode": sender.encode_seconds + sender.checksum_seconds,
        "wire": min(sender.send_seconds, receiver.receive_seconds),
        "decode": receiver.decode_seconds,
        "host_to_device": receiver.host_to_device_seconds,
    }


def dominant_leg(sender: SenderLegs, receiver: ReceiverLegs) -> str:
    """The leg that took longest: to make the hand-off faster, begin there."""
    legs = legs_of(sender, receiver)
    return max(legs, key=lambda name: legs[name])
