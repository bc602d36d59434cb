"""Every transport is held to the same: what arrives, what is refused, what happens when a side goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crossing import CLOCK, SECRET, Engine, Receiver, failing, manifest_of, namespace, numbers

from kvferry.handoff.transports.address import Dialer, Listener, listen, open_dialer
from kvferry.handoff.transports.contract import Answer, Receipt
from kvferry.handoff.transports.limited import LimitedOutgoing
from kvferry.handoff.transports.probe import measure_link
from kvferry.handoff.wire.failed import Cut, Damaged, HandoffFailed
from kvferry.handoff.wire.legs import ReceiverLegs, SenderLegs
from kvferry.handoff.wire.memory import HostKv
from kvferry.handoff.wire.message import digest_of
from kvferry.handoff.wire.sender import Sent, send
from kvferry.outcomes import Outcome

NAMESPACE = namespace().digest()


class Way:
    """One transport, both ends of it in this process."""

    def __init__(self, address: str, waits: bool) -> None:
        self.keys: dict[str, Any] = {
            "handoff_id": "h-1", "namespace": NAMESPACE, "secret": SECRET, "clock": CLOCK,
        }  # fmt: skip
        self.listener: Listener
        self.listener, self.address = listen(address, **self.keys)
        self.dial: Dialer = open_dialer(self.address, waits=waits, **self.keys)

    def close(self) -> None:
        self.dial.close()
        self.listener.close()

    def send(self, kv: np.ndarray[Any, Any], **options: Any) -> Sent:
        settings = {"secret": SECRET, "deadline": CLOCK.now() + 20, "clock": CLOCK} | options
        dial = settings.pop("dial", self.dial)
        manifest = settings.pop("manifest", None) or manifest_of()
        return send(HostKv(kv.view(np.uint8)), manifest, dial, **settings)


@pytest.fixture(params=["tcp", "shm", "files"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    addresses = {"tcp": "tcp://127.0.0.1:0", "shm": "shm://", "files": f"files://{tmp_path}"}
    made = Way(addresses[request.param], waits=True)
    yield made
    made.close()


def both(way: Way, receiving: Callable[[Any], Any], sending: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What both sides return, or the HandoffFailed that they raise."""
    answers: dict[str, Any] = {}

    def run(name: str, side: Callable[[], Any], work: Callable[[Any], Any]) -> None:
        try:
            end = side()
            try:
                answers[name] = work(end)
            finally:
                end.close()
        except HandoffFailed as failure:
            answers[name] = failure

    until = CLOCK.now() + 10
    thread = threading.Thread(target=run, args=("in", lambda: way.listener.accept(until), receiving))
    thread.start()
    run("out", lambda: way.dial(until), sending)
    thread.join(15)
    return answers["in"], answers["out"]


def test_all_that_is_said_is_heard(way: Way) -> None:
    payload = [memoryview(bytes([i]) * (1000 * i)) for i in range(1, 6)]
    into = [memoryview(bytearray(part.nbytes)) for part in payload]

    def receiving(end: Any) -> Any:
        until = CLOCK.now() + 10
        offered = end.take_offer(until)
        end.answer(Answer(take=True, reason="pays", from_chunk=0), until)
        end.chunk(0, into, until)
        end.chunk(1, into[:2], until)
        legs = end.trailer(until)
        end.receipt(Receipt(installed=True, legs=ReceiverLegs(bytes=7)), until)
        return offered, legs

    def sending(end: Any) -> Any:
        until = CLOCK.now() + 10
        answer = end.offer(b"manifest", 2, until)
        end.chunk(0, payload, digest_of(payload), until)
        end.chunk(1, payload[:2], digest_of(payload[:2]), until)
        return answer, end.finish(SenderLegs(encode_seconds=1.5), until)

    (offered, legs), (answer, receipt) = both(way, receiving, sending)
    assert (offered, legs.encode_seconds) == (b"manifest", 1.5)
    assert (answer.reason, receipt.legs.bytes) == ("pays", 7)
    assert [bytes(part) for part in into] == [bytes(part) for part in payload]


def test_a_whole_hand_off(way: Way) -> None:
    receiver, kv = Receiver(way.listener.accept, Engine()), numbers()
    sent = way.send(kv)
    assert receiver.result().cause is None
    assert sent.receipt is not None
    assert sent.receipt.installed
    assert np.array_equal(receiver.engine.carried, kv)


def test_eight_bits(way: Way) -> None:
    receiver, kv = Receiver(way.listener.accept, Engine(codec="int8")), numbers()
    way.send(kv, manifest=manifest_of(codec="int8"))
    assert receiver.result().cause is None
    assert np.abs(receiver.engine.carried - kv).max() < 0.03


def test_a_refusal_reaches_the_sender(way: Way) -> None:
    receiver = Receiver(way.listener.accept, Engine(space=namespace(model="other")))
    sent = way.send(numbers())
    assert receiver.result().cause is Outcome.INCOMPATIBLE
    assert not sent.answer.take
    assert "model is tiny there, other here" in sent.answer.detail


@pytest.mark.parametrize("at", [1, 7])
def test_a_cut_is_gone_on_from(way: Way, at: int) -> None:
    faults = [at]

    class Cutting(LimitedOutgoing):
        def chunk(self, index: int, *rest: Any) -> None:
            if faults == [index]:
                faults.clear()
                self.close()
                raise Cut("cut by the test")
            super().chunk(index, *rest)

    receiver, kv = Receiver(way.listener.accept, Engine()), numbers()
    sent = way.send(kv, dial=lambda until: Cutting(way.dial(until), 1e12, CLOCK))
    assert receiver.result().cause is None
    assert np.array_equal(receiver.engine.carried, kv)
    assert all(resumed <= at for resumed in sent.resumed_from)


def test_a_side_that_waits_does_so_until_its_deadline(way: Way) -> None:
    failure = failing(lambda: way.listener.accept(CLOCK.now() + 0.1).take_offer(CLOCK.now() + 0.1))
    assert failure.cause is Outcome.LATE


def test_a_link_is_measured(way: Way) -> None:
    def receiving(end: Any) -> Any:
        return end.take_offer(CLOCK.now() + 10)

    def probing(end: Any) -> Any:
        figures = measure_link(end, CLOCK.now() + 10, probes=2, payload_bytes=1 << 20)
        with pytest.raises(HandoffFailed):
            end.offer(b"so that the other side ends", 0, CLOCK.now() + 0.3)
        return figures

    _, figures = both(way, receiving, probing)
    assert figures.bytes_per_second > 1e6
    assert figures.round_trip_seconds > 0


def test_a_wrong_digest_is_damage(way: Way) -> None:
    """Of a tier the frame's own checksum: the next test."""
    if way.address.startswith("files"):
        pytest.skip("a tier's frame has a checksum of its own")
    payload = [memoryview(bytes(100))]

    def receiving(end: Any) -> Any:
        until = CLOCK.now() + 10
        end.take_offer(until)
        end.answer(Answer(take=True, reason=""), until)
        end.chunk(0, [memoryview(bytearray(100))], until)

    def sending(end: Any) -> Any:
        end.offer(b"", 1, CLOCK.now() + 10)
        end.chunk(0, payload, bytes(16), CLOCK.now() + 10)

    failure, _ = both(way, receiving, sending)
    assert isinstance(failure, Damaged)


def test_a_limited_link_keeps_to_its_rate() -> None:
    from kvferry.clock import VirtualClock

    clock = VirtualClock()

    class Nowhere:
        wants_digest = True

        def chunk(self, *_: Any) -> None: ...

    slow = LimitedOutgoing(Nowhere(), 1000.0, clock)  # type: ignore[arg-type]
    for index in range(5):
        slow.chunk(index, [memoryview(bytes(200))], b"", 100.0)
    assert clock.now() == pytest.approx(1.0)
    assert failing(lambda: slow.chunk(5, [memoryview(bytes(10**6))], b"", 10.0)).cause is Outcome.LATE
