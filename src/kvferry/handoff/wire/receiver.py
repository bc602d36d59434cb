"""Receiving a hand-off: check the offer, decide, install chunk by chunk, and say what became of it.

Chunks are taken in order only, and a layer counts as there when every one of its chunks, and every layer
before it, has been verified, decoded and installed: attention waits at `Layers` and meets nothing else.
Decoding and copying to a device happen in a thread beside, while the next chunk is read: two chunks of
memory. Raw KV arrives where it belongs. A hand-off that fails in any way leaves the request to be computed;
nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from ...clock import Clock
from ...errors import ConfigError, FormatError
from ...gate.facts import Decision, Facts
from ...outcomes import Outcome
from ..transports.contract import Answer, Incoming, Receipt
from .failed import Cut, Damaged, HandoffFailed
from .layers import Layers
from .legs import ReceiverLegs, SenderLegs, Stopwatch
from .manifest import Manifest, unseal
from .memory import KvMemory, copy_rows
from .plan import Plan

__all__ = ["Host", "Received", "receive"]

_MOST_DAMAGED = 3
"""A chunk that was damaged so often in a row is not asked for again."""


class Host(Protocol):
    """The engine on this side. Called in the receiving thread."""

    def check(self, manifest: Manifest) -> None:
        """Raise HandoffFailed (incompatible) for KV that is not this engine's own."""

    def judge(self, manifest: Manifest, payload_bytes: int, seconds: float) -> tuple[Facts, Decision]:
        """Whether to take it (`pricing.decide_handoff`); `seconds` are left for it."""

    def open(self, manifest: Manifest, layers: Layers, deadline: float) -> KvMemory:
        """Memory for the KV. From here on the engine may run, waiting at `layers`."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """How a hand-off ended for its receiver."""

    manifest: Manifest | None
    """None where no offer could be read."""
    facts: Facts | None
    decision: Decision | None
    cause: Outcome | None
    """None where all of it was installed; else what its tokens are booked under."""
    detail: str
    payload_bytes: int
    """Of the whole hand-off, as it crosses."""
    sender: SenderLegs
    receiver: ReceiverLegs
    resumed_from: tuple[int, ...]


def receive(
    accept: Callable[[float], Incoming],
    host: Host,
    *,
    secret: bytes,
    deadline: float,
    clock: Clock,
    arrival_seconds: float | None = None,
    grace_seconds: float = 5.0,
) -> Received:
    """Receive one hand-off, over as many connections as it takes.

    The offer has until `deadline`, and what was offered `arrival_seconds` from then on (None: the same
    deadline). A sender that is cut off has `grace_seconds` to come back. Faults of the hand-off are in the
    answer and in `Layers`, never raised; other errors are.
    """
    receiving = _Receiving(host, secret, deadline, clock, arrival_seconds, grace_seconds)
    try:
        return receiving.run(accept)
    except BaseException:
        receiving.broke()
        raise
    finally:
        receiving.close()


class _Receiving:
    def __init__(
        self,
        host: Host,
        secret: bytes,
        deadline: float,
        clock: Clock,
        arrival_seconds: float | None,
        grace_seconds: float,
    ) -> None:
        self._host, self._secret, self._clock = host, secret, clock
        self._deadline, self._grace = deadline, grace_seconds
        self._arrival = arrival_seconds
        self._manifest: Manifest | None = None
        self._plan: Plan | None = None
        self._layers: Layers | None = None
        self._kv: KvMemory | None = None
        self._facts: Facts | None = None
        self._decision: Decision | None = None
        self._next = 0
        """The first chunk that is not installed."""
        self._resumed: list[int] = []
        self._damaged = 0
        self._answered_at = 0.0
        self._first_layer: float | None = None
        self._ready: float | None = None
        self._bytes = 0
        self._watch = Stopwatch(clock)
        self._sender = SenderLegs()
        self._installer = ThreadPoolExecutor(1, "kvferry-handoff-install")
        self._slots: list[memoryview] = []
        self._block = memoryview(bytearray())

    def close(self) -> None:
        self._installer.shutdown(wait=True)

    def broke(self) -> None:
        """Nobody is to wait for layers that no thread will bring."""
        if self._layers is not None:
            self._layers.fail(HandoffFailed(Outcome.FAILED, "the receiving thread broke"))

    def run(self, accept: Callable[[float], Incoming]) -> Received:
        until = self._deadline
        while True:
            try:
                incoming = accept(until)
            except Cut as failure:
                return self._failed(failure)
            except HandoffFailed as failure:
                if self._manifest is not None and until < self._deadline:
                    return self._failed(Cut(f"the sender did not come back within {self._grace:g} s"))
                return self._failed(failure)
            try:
                return self._over(incoming, until)
            except (Cut, Damaged) as failure:
                if self._ready is not None:
                    return self._failed(failure)
                if isinstance(failure, Damaged) and self._manifest is not None:
                    self._damaged += 1
                    if self._damaged >= _MOST_DAMAGED:
                        return self._failed(failure)
                if self._manifest is not None:
                    until = min(self._deadline, self._clock.now() + self._grace)
            except HandoffFailed as failure:
                if self._damaged and failure.cause is Outcome.LATE:
                    return self._failed(Damaged(f"chunk {self._next} was damaged, and did not come again"))
                return self._failed(failure)
            finally:
                incoming.close()

    def _over(self, incoming: Incoming, until: float) -> Received:
        """One connection, to the end of the hand-off. Raises HandoffFailed."""
        offered = incoming.take_offer(until)
        try:
            manifest = unseal(offered, self._secret)
            self._admit(manifest)
        except (FormatError, ConfigError) as error:
            self._refuse(incoming, Outcome.INCOMPATIBLE, str(error))
            raise HandoffFailed(Outcome.INCOMPATIBLE, str(error)) from error
        except HandoffFailed as failure:
            self._refuse(incoming, failure.cause, str(failure))
            if self._manifest is not None:
                raise Cut(f"a stranger came: {failure}") from failure
            raise
        decision = self._decision
        if decision is not None and not decision.loads:
            self._refuse(incoming, Outcome.DECLINED, "", decision)
            raise HandoffFailed(Outcome.DECLINED, f"the gate declined it: {decision.reason.value}")
        return self._take(incoming, manifest)

    def _admit(self, manifest: Manifest) -> None:
        """Check and judge a first offer; a later one must be of the same hand-off."""
        known = self._manifest
        if known is not None:
            if _identity(known) != _identity(manifest):
                raise HandoffFailed(
                    Outcome.FAILED, f"hand-off {manifest.handoff_id} came in the place of {known.handoff_id}"
                )
            return
        plan = Plan(manifest)
        self._host.check(manifest)
        if self._arrival is not None:
            self._deadline = self._clock.now() + self._arrival
        left = self._deadline - self._clock.now()
        self._facts, self._decision = self._host.judge(manifest, plan.payload_bytes, left)
        self._manifest, self._plan = manifest, plan

    def _refuse(
        self, incoming: Incoming, cause: Outcome, detail: str, decision: Decision | None = None
    ) -> None:
        reason = cause.value if decision is None else decision.reason.value
        priced = None if decision is None else msgspec.to_builtins(decision)
        answer = Answer(take=False, reason=reason, detail=detail, decision=priced)
        try:
            incoming.answer(answer, self._deadline)
        except HandoffFailed:
            return  # who does not hear that he is refused is refused all the same

    def _take(self, incoming: Incoming, manifest: Manifest) -> Received:
        plan = Plan(manifest) if self._plan is None else self._plan
        if self._layers is None:
            self._layers = Layers(manifest.layers, self._clock)
            self._kv = self._host.open(manifest, self._layers, self._deadline)
            if manifest.codec != "raw":
                self._slots = [memoryview(bytearray(plan.largest_bytes)) for _ in range(2)]
                self._block = memoryview(bytearray(plan.largest_block_bytes))
            self._answered_at = self._clock.now()
        else:
            self._resumed.append(self._next)
        decision = self._decision
        reason = "" if decision is None else decision.reason.value
        priced = None if decision is None else msgspec.to_builtins(decision)
        incoming.answer(
            Answer(take=True, reason=reason, from_chunk=self._next, decision=priced), self._deadline
        )
        self._read(incoming, plan)
        self._sender = incoming.trailer(self._deadline)
        incoming.receipt(Receipt(installed=True, legs=self._legs()), self._deadline)
        return self._received(None, "")

    def _read(self, incoming: Incoming, plan: Plan) -> None:
        """All chunks that are still wanted. Nothing is under way in the installing thread on return."""
        installs = self._slots or (self._kv is not None and self._kv.copies)
        pending: Future[None] | None = None
        try:
            for index in range(self._next, plan.chunks):
                arrived = self._read_one(incoming, plan, index)
                if not installs:
                    arrived()
                    continue
                if pending is not None:
                    pending.result()
                pending = self._installer.submit(arrived)
        finally:
            if pending is not None:
                pending.result()

    def _read_one(self, incoming: Incoming, plan: Plan, index: int) -> Callable[[], None]:
        """Read one chunk; what is left to do with it."""
        chunk, kv = plan.chunk(index), self._kv
        if kv is None:
            raise RuntimeError("a hand-off without memory")
        if self._manifest is not None and self._manifest.codec != "raw":
            slot = self._slots[index % 2][: chunk.payload_bytes]
            rows = None
            into = [slot]
        else:
            rows = kv.room(chunk.layer, chunk.start, chunk.stop)
            slot = memoryview(b"")
            into = list(rows)
        deadline = self._deadline
        if self._damaged:
            deadline = min(deadline, self._clock.now() + self._grace)
        with self._watch.on("receive"):
            incoming.chunk(index, into, deadline)

        def install() -> None:
            if rows is None:
                with self._watch.on("decode"):
                    block = self._block[: chunk.block_bytes]
                    plan.codec(chunk).decode_into(slot, block)
                    copy_rows(kv.room(chunk.layer, chunk.start, chunk.stop), block, back=True)
            with self._watch.on("host_to_device"):
                kv.filled(chunk.layer, chunk.start, chunk.stop)
            self._installed(plan, index, chunk.payload_bytes)

        return install

    def _installed(self, plan: Plan, index: int, payload_bytes: int) -> None:
        self._next = index + 1
        self._damaged = 0
        self._bytes += payload_bytes
        whole = plan.layers_before(self._next)
        if whole and self._first_layer is None:
            self._first_layer = self._clock.now() - self._answered_at
        if self._next == plan.chunks:
            self._ready = self._clock.now() - self._answered_at
        if self._layers is not None:
            self._layers.advance(whole)

    def _failed(self, failure: HandoffFailed) -> Received:
        if self._ready is not None:
            # Only the farewell failed: everything is installed.
            return self._received(None, str(failure))
        if self._layers is not None:
            self._layers.fail(failure)
        return self._received(failure.cause, str(failure))

    def _received(self, cause: Outcome | None, detail: str) -> Received:
        return Received(
            manifest=self._manifest,
            facts=self._facts,
            decision=self._decision,
            cause=cause,
            detail=detail,
            payload_bytes=0 if self._plan is None else self._plan.payload_bytes,
            sender=self._sender,
            receiver=self._legs(),
            resumed_from=tuple(self._resumed),
        )

    def _legs(self) -> ReceiverLegs:
        copies = self._kv is not None and self._kv.copies
        return ReceiverLegs(
            receive_seconds=self._watch["receive"],
            decode_seconds=self._watch["decode"],
            host_to_device_seconds=self._watch["host_to_device"] if copies else 0.0,
            first_layer_seconds=self._first_layer,
            ready_seconds=self._ready,
            bytes=self._bytes,
        )


def _identity(manifest: Manifest) -> Manifest:
    """What must be equal on every attempt: whether the prefill is done by now is not."""
    return msgspec.structs.replace(manifest, sunk=True, prefill_seconds=0.0)
