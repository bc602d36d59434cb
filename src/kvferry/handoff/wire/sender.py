"""Sending a hand-off: offer it, stage and send its chunks layer by layer, go on where it was cut.

Where chunks are copied from a device or encoded, one is on the way while the next one is staged in a thread
beside: two chunks of memory, whatever the prefill's size. Raw KV in host memory only wants its checksum, and
to hand that to another thread costs more than making it. A layer is sent when its prefill is done, not
before; so with a prefill that still runs, the first layers cross while later ones are computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ...clock import Clock
from ...errors import FormatError
from ...outcomes import Outcome
from ..transports.contract import Answer, Outgoing, Receipt
from .failed import Cut, Damaged, HandoffFailed, late
from .layers import Layers
from .legs import SenderLegs, Stopwatch
from .manifest import Manifest, seal
from .memory import KvMemory, Rows, copy_rows
from .message import digest_of
from .plan import Plan

__all__ = ["Sent", "send"]

_ATTEMPTS = 8
_FIRST_NAP, _LONGEST_NAP = 0.02, 0.5


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """How a hand-off ended for its sender."""

    answer: Answer
    receipt: Receipt | None
    """None where the offer was not taken."""
    legs: SenderLegs
    resumed_from: tuple[int, ...]
    """The chunk that each later attempt began with."""


def send(
    kv: KvMemory,
    manifest: Manifest,
    dial: Callable[[float], Outgoing],
    *,
    secret: bytes,
    deadline: float,
    clock: Clock,
    layers: Layers | None = None,
    on_taken: Callable[[], None] = lambda: None,
    attempts: int = _ATTEMPTS,
) -> Sent:
    """Offer and send one prefill; returns when the receiver has it, or does not want it.

    `layers` says what is computed (None: everything). `on_taken` is called once, when the offer is first
    taken: the moment to begin a prefill that was not sunk. A connection that breaks is made again, at most
    `attempts` times. Raises HandoffFailed.
    """
    sending = _Sending(kv, manifest, secret, deadline, clock, layers, on_taken)
    try:
        return sending.run(dial, attempts)
    finally:
        sending.close()


class _Sending:
    def __init__(
        self,
        kv: KvMemory,
        manifest: Manifest,
        secret: bytes,
        deadline: float,
        clock: Clock,
        layers: Layers | None,
        on_taken: Callable[[], None],
    ) -> None:
        self._kv, self._manifest, self._secret = kv, manifest, secret
        self._deadline, self._clock = deadline, clock
        self._plan = Plan(manifest)
        self._layers = layers
        self._on_taken = on_taken
        self._watch = Stopwatch(clock)
        self._bytes = 0
        self._attempts = 0
        self._resumed: list[int] = []
        self._taken_at: float | None = None
        self._computed_at: float | None = None
        self._stager = ThreadPoolExecutor(1, "kvferry-handoff-stage")
        encodes = manifest.codec != "raw"
        self._block = memoryview(bytearray(self._plan.largest_block_bytes if encodes else 0))
        self._slots = [memoryview(bytearray(self._plan.largest_bytes if encodes else 0)) for _ in range(2)]

    def run(self, dial: Callable[[float], Outgoing], attempts: int) -> Sent:
        nap = _FIRST_NAP
        while True:
            self._attempts += 1
            try:
                return self._attempt(dial)
            except (Cut, Damaged) as failure:
                if self._attempts >= attempts:
                    raise
                left = self._deadline - self._clock.now()
                if left <= nap:
                    raise late(f"another connection (the last one: {failure})") from failure
            self._clock.sleep(nap)
            nap = min(_LONGEST_NAP, nap * 2)

    def close(self) -> None:
        self._stager.shutdown(wait=True)

    def _attempt(self, dial: Callable[[float], Outgoing]) -> Sent:
        outgoing = dial(self._deadline)
        try:
            sealed = seal(self._manifest, self._secret)
            answer = outgoing.offer(sealed, self._plan.chunks, self._deadline)
            if not answer.take:
                return self._sent(answer, None)
            if self._taken_at is None:
                self._taken_at = self._clock.now()
                self._on_taken()
            else:
                self._resumed.append(answer.from_chunk)
            self._send_from(answer.from_chunk, outgoing)
            receipt = outgoing.finish(self._legs(), self._deadline)
            return self._sent(answer, receipt)
        finally:
            outgoing.close()

    def _send_from(self, first: int, outgoing: Outgoing) -> None:
        if not 0 <= first <= self._plan.chunks:
            raise HandoffFailed(
                Outcome.INCOMPATIBLE, f"the receiver asks for chunk {first} of {self._plan.chunks}"
            )
        if first == self._plan.chunks:
            return
        staging = self._manifest.codec != "raw" or self._kv.copies
        staged = self._staged_beside if staging else self._staged_here
        with contextlib.closing(staged(first, outgoing.wants_digest)) as chunks:
            for index, (payload, digest) in enumerate(chunks, first):
                with self._watch.on("send"):
                    outgoing.chunk(index, payload, digest, self._deadline)
                self._bytes += sum(part.nbytes for part in payload)

    def _staged_here(self, first: int, wants_digest: bool) -> Generator[tuple[Rows, bytes], None, None]:
        for index in range(first, self._plan.chunks):
            yield self._stage(index, wants_digest)

    def _staged_beside(self, first: int, wants_digest: bool) -> Generator[tuple[Rows, bytes], None, None]:
        """The same, each chunk made while the one before it is sent."""
        coming = self._stager.submit(self._stage, first, wants_digest)
        try:
            for index in range(first, self._plan.chunks):
                staged = coming.result()
                if index + 1 < self._plan.chunks:
                    coming = self._stager.submit(self._stage, index + 1, wants_digest)
                yield staged
        finally:
            # The staging thread must be done with the slots before an attempt uses them again.
            coming.exception()

    def _stage(self, index: int, wants_digest: bool) -> tuple[Rows, bytes]:
        """One chunk as it crosses. Of a hand-off, one thread alone calls this and touches `kv`."""
        chunk = self._plan.chunk(index)
        if self._layers is not None:
            self._layers.wait(chunk.layer, self._deadline)
            if self._computed_at is None and chunk.layer == self._manifest.layers - 1:
                self._computed_at = self._clock.now()
        with self._watch.on("device_to_host"):
            rows = self._kv.read(chunk.layer, chunk.start, chunk.stop)
        if self._manifest.codec != "raw":
            with self._watch.on("encode"):
                block = self._block[: chunk.block_bytes]
                copy_rows(rows, block)
                slot = self._slots[index % 2][: chunk.payload_bytes]
                try:
                    self._plan.codec(chunk).encode_into(block, slot)
                except FormatError as error:
                    raise HandoffFailed(
                        Outcome.FAILED, f"layer {chunk.layer}: {error}; send it raw"
                    ) from error
                rows = [slot]
        if not wants_digest:
            return rows, b""
        with self._watch.on("checksum"):
            return rows, digest_of(rows)

    def _legs(self) -> SenderLegs:
        prefill = 0.0
        if not self._manifest.sunk and self._taken_at is not None and self._computed_at is not None:
            prefill = self._computed_at - self._taken_at
        return SenderLegs(
            prefill_seconds=prefill,
            device_to_host_seconds=self._watch["device_to_host"] if self._kv.copies else 0.0,
            encode_seconds=self._watch["encode"],
            checksum_seconds=self._watch["checksum"],
            send_seconds=self._watch["send"],
            bytes=self._bytes,
            attempts=self._attempts,
        )

    def _sent(self, answer: Answer, receipt: Receipt | None) -> Sent:
        return Sent(answer=answer, receipt=receipt, legs=self._legs(), resumed_from=tuple(self._resumed))
