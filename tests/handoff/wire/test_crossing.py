"""A hand-off over TCP, whole and broken: what arrives, what is attended to, what it is booked as."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from crossing import (
    CLOCK,
    SECRET,
    Engine,
    Pair,
    failing,
    manifest_of,
    namespace,
    numbers,
    tampering,
)

from kvferry.gate.facts import Reason
from kvferry.handoff.transports.contract import Outgoing
from kvferry.handoff.wire.failed import Cut, HandoffFailed
from kvferry.handoff.wire.layers import Layers
from kvferry.handoff.wire.plan import Plan
from kvferry.outcomes import Outcome


def cut(real: Outgoing, *_: Any) -> None:
    """The connection breaks before this chunk."""
    real.close()
    raise Cut("cut by the test")


def damage(real: Outgoing, index: int, payload: Sequence[memoryview], digest: bytes, deadline: float) -> None:
    """One bit of the chunk flips on the way; the sender does not notice."""
    flipped = bytearray(b"".join(payload))
    flipped[len(flipped) // 2] ^= 1
    real.chunk(index, [memoryview(flipped)], digest, deadline)


def test_raw_kv_arrives_bit_by_bit(pair: Pair) -> None:
    receiver, kv = pair.receiver(), numbers()
    sent = pair.send(kv)
    received = receiver.result()
    assert received.cause is None
    assert np.array_equal(receiver.engine.carried, kv)
    assert sent.receipt is not None
    assert sent.receipt.installed
    assert received.receiver.bytes == received.payload_bytes == kv.nbytes


@pytest.mark.parametrize("codec", ["fp16", "int8", "int4"])
def test_a_lossy_codec_that_was_agreed_to_arrives(pair: Pair, codec: str) -> None:
    receiver, kv = pair.receiver(Engine(codec=codec)), numbers()
    pair.send(kv, manifest_of(codec=codec))
    assert receiver.result().cause is None
    assert 0 < np.abs(receiver.engine.carried - kv).max() < 0.3


def test_attention_may_begin_at_layer_0_while_layer_1_is_on_the_way(pair: Pair) -> None:
    computed = Layers(3, CLOCK)
    receiver, kv = pair.receiver(), numbers()
    sending = threading.Thread(target=lambda: pair.send(kv, layers=computed))
    sending.start()
    computed.advance(1)
    assert receiver.engine.opened.wait(10)
    layers = receiver.engine.layers
    assert layers is not None
    layers.wait(0, CLOCK.now() + 10)
    assert layers.ready == 1
    assert np.array_equal(receiver.engine.carried[0], kv[0])
    computed.advance(3)
    sending.join(10)
    assert receiver.result().cause is None


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_a_cut_connection_is_gone_on_with_at_its_chunk(pair: Pair, at: int) -> None:
    receiver, kv = pair.receiver(), numbers()
    sent = pair.send(kv, dial=tampering(pair, {at: cut}))
    received = receiver.result()
    assert received.cause is None
    assert np.array_equal(receiver.engine.carried, kv)
    assert received.resumed_from == sent.resumed_from
    (resumed,) = sent.resumed_from
    assert resumed <= at
    assert received.receiver.bytes == kv.nbytes, "no chunk is installed twice"


def test_a_hand_off_survives_many_cuts(pair: Pair) -> None:
    receiver, kv = pair.receiver(), numbers()
    sent = pair.send(kv, dial=tampering(pair, dict.fromkeys((2, 4, 7, 9), cut)))
    assert receiver.result().cause is None
    assert sent.legs.attempts == 5
    assert np.array_equal(receiver.engine.carried, kv)


@pytest.mark.parametrize("at", [0, 6, 11])
def test_a_damaged_chunk_is_asked_for_again(pair: Pair, at: int) -> None:
    receiver, kv = pair.receiver(), numbers()
    pair.send(kv, dial=tampering(pair, {at: damage}))
    received = receiver.result()
    assert received.cause is None
    assert received.resumed_from == (at,)
    assert np.array_equal(receiver.engine.carried, kv)


def test_a_chunk_that_is_always_damaged_fails_the_hand_off(pair: Pair) -> None:
    class Always(dict[int, Any]):
        def pop(self, key: int, default: Any = None) -> Any:
            return damage if key == 5 else default

    receiver = pair.receiver()
    until = CLOCK.now() + 3
    failing(lambda: pair.send(numbers(), dial=tampering(pair, Always()), attempts=4, deadline=until))
    received = receiver.result()
    assert received.cause is Outcome.CORRUPT
    layers = receiver.engine.layers
    assert layers is not None
    layers.wait(0, CLOCK.now() + 1)
    assert failing(lambda: layers.wait(1, CLOCK.now() + 1)).cause is Outcome.CORRUPT


def test_chunks_out_of_order_are_never_attended_to(pair: Pair) -> None:
    """Layer 2's chunks come where layer 1's are due."""

    def early(
        real: Outgoing, index: int, payload: Sequence[memoryview], digest: bytes, deadline: float
    ) -> None:
        real.chunk(index + 4, payload, digest, deadline)

    receiver = pair.receiver(grace_seconds=0.3)
    failing(lambda: pair.send(numbers(), dial=tampering(pair, {4: early}), attempts=1))
    received = receiver.result()
    assert received.cause is Outcome.FAILED
    assert receiver.engine.layers is not None
    assert receiver.engine.layers.ready == 1
    assert not receiver.engine.carried[1:].any()


def test_a_missing_layer_is_never_attended_to(pair: Pair) -> None:
    """The sender leaves out a chunk, and says that it is done."""
    receiver = pair.receiver(grace_seconds=0.3)
    failing(lambda: pair.send(numbers(), dial=tampering(pair, {11: lambda *_: None}), attempts=1))
    received = receiver.result()
    assert received.cause is Outcome.FAILED
    assert receiver.engine.layers is not None
    assert receiver.engine.layers.ready == 2


def test_a_sender_that_dies_leaves_the_prompt_to_the_receiver(pair: Pair) -> None:
    receiver = pair.receiver(grace_seconds=0.3)
    failing(lambda: pair.send(numbers(), dial=tampering(pair, {6: cut}), attempts=1))
    received = receiver.result()
    assert received.cause is Outcome.FAILED
    assert "did not come back" in received.detail
    layers = receiver.engine.layers
    assert layers is not None
    failing(lambda: layers.wait(2, CLOCK.now() + 5))


def test_kv_of_another_namespace_is_refused_before_a_byte_of_it(pair: Pair) -> None:
    receiver = pair.receiver()
    sent = pair.send(numbers(), manifest_of(space=namespace(weights_revision="2")))
    received = receiver.result()
    assert (received.cause, sent.answer.take) == (Outcome.INCOMPATIBLE, False)
    assert "weights_revision is 2 there, 1 here" in sent.answer.detail
    assert receiver.engine.layers is None
    assert sent.legs.bytes == 0


def test_a_codec_that_was_not_agreed_to_is_refused(pair: Pair) -> None:
    receiver = pair.receiver()
    sent = pair.send(numbers(), manifest_of(codec="int4"))
    assert receiver.result().cause is Outcome.INCOMPATIBLE
    assert "kv_dtype" in sent.answer.detail


def test_another_tenants_hand_off_is_refused(pair: Pair) -> None:
    receiver = pair.receiver(secret=b"\7" * 32)
    sent = pair.send(numbers())
    assert receiver.result().cause is Outcome.INCOMPATIBLE
    assert "tenant" in sent.answer.detail


def test_what_the_gate_declines_is_not_computed_by_the_sender(pair: Pair) -> None:
    begun: list[int] = []
    receiver = pair.receiver(Engine(policy="never"))
    sent = pair.send(
        numbers(), manifest_of(sunk=False, prefill_seconds=1.0), on_taken=lambda: begun.append(1)
    )
    received = receiver.result()
    assert (received.cause, sent.answer.reason, begun) == (Outcome.DECLINED, Reason.NEVER.value, [])


def test_a_slow_receiver_holds_the_sender_up(pair: Pair) -> None:
    """The kernel's buffers are all that may be under way."""
    tokens = 20_000
    kv = np.zeros((3, 2, 2, tokens, 16), np.float32)
    manifest = manifest_of(token_ids=[1] * (tokens + 1), chunk_tokens=1024)
    sizes: list[int] = []

    class Slow(Engine):
        def open(self, manifest: Any, layers: Layers, deadline: float) -> Any:
            time.sleep(0.5)
            sizes.append(sent_bytes[0])
            self.kv = np.zeros_like(kv)
            return super().open(manifest, layers, deadline)

    sent_bytes = [0]

    def counting(real: Outgoing, index: int, payload: Any, digest: bytes, deadline: float) -> None:
        real.chunk(index, payload, digest, deadline)
        sent_bytes[0] += sum(part.nbytes for part in payload)

    receiver = pair.receiver(Slow())
    pair.send(kv, manifest, dial=tampering(pair, dict.fromkeys(range(Plan(manifest).chunks), counting)))
    assert receiver.result().cause is None
    assert sizes == [0], "nothing is sent before the receiver has made room"


def test_nobody_waits_beyond_the_deadline_for_a_receiver_that_does_not_read(pair: Pair) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    from kvferry.handoff.transports.tcp import dial_tcp

    def dial(deadline: float) -> Outgoing:
        return dial_tcp("127.0.0.1", silent.getsockname()[1], deadline, CLOCK)

    failure = failing(lambda: pair.send(numbers(), dial=dial, deadline=CLOCK.now() + 0.3))
    silent.close()
    assert failure.cause is Outcome.LATE


def test_a_prefill_that_comes_too_late_is_booked_late(pair: Pair) -> None:
    never = Layers(3, CLOCK)
    receiver = pair.receiver(arrival_seconds=0.4)
    failing(lambda: pair.send(numbers(), layers=never, deadline=CLOCK.now() + 0.6))
    received = receiver.result()
    assert received.cause is Outcome.LATE
    layers = receiver.engine.layers
    assert layers is not None
    failing(lambda: layers.wait(0, CLOCK.now() + 5))


def test_an_offer_that_never_comes_is_late(pair: Pair) -> None:
    received = pair.receiver(deadline=CLOCK.now() + 0.2).result()
    assert (received.cause, received.manifest) == (Outcome.LATE, None)


def test_a_stranger_does_not_end_a_hand_off(pair: Pair) -> None:
    """Between two attempts somebody else connects, with a hand-off of his own."""
    kv = numbers()
    receiver = pair.receiver()

    def interrupted(real: Outgoing, *_: Any) -> None:
        real.close()
        answer = pair.send(numbers(7), manifest_of(handoff_id="other")).answer
        assert not answer.take
        raise Cut("cut by the test")

    pair.send(kv, dial=tampering(pair, {5: interrupted}))
    assert receiver.result().cause is None
    assert np.array_equal(receiver.engine.carried, kv)


def test_noise_on_the_port_does_not_end_a_hand_off(pair: Pair) -> None:
    receiver, kv = pair.receiver(), numbers()
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", pair.listener.port)) as noisy:
            noisy.sendall(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 4)
    pair.send(kv)
    assert receiver.result().cause is None


def test_a_second_receiver_cannot_take_the_port(pair: Pair) -> None:
    from kvferry.errors import ConfigError
    from kvferry.handoff.transports.tcp import TcpListener

    with pytest.raises(ConfigError, match="port 0"):
        TcpListener("127.0.0.1", pair.listener.port, CLOCK)


def test_a_prefill_that_fails_fails_the_hand_off(pair: Pair) -> None:
    computed = Layers(3, CLOCK)
    computed.advance(1)
    computed.fail(HandoffFailed(Outcome.FAILED, "out of memory"))
    receiver = pair.receiver(grace_seconds=0.3)
    assert "out of memory" in str(failing(lambda: pair.send(numbers(), layers=computed)))
    assert receiver.result().cause is Outcome.FAILED


def test_numbers_that_a_codec_cannot_hold_fail_the_hand_off(pair: Pair) -> None:
    kv = numbers()
    kv[1, 0, 0, 3, 2] = np.inf
    receiver = pair.receiver(Engine(codec="int8"), grace_seconds=0.3)
    assert "send it raw" in str(failing(lambda: pair.send(kv, manifest_of(codec="int8"))))
    assert receiver.result().cause is Outcome.FAILED


def test_memory_is_bounded_by_two_chunks(pair: Pair) -> None:
    import tracemalloc

    tokens = 8_000
    kv = np.random.default_rng(0).standard_normal((3, 2, 2, tokens, 16)).astype(np.float32)
    engine = Engine(codec="int8")
    engine.kv = np.zeros_like(kv)
    manifest = manifest_of(token_ids=[1] * (tokens + 1), chunk_tokens=256, codec="int8")
    receiver = pair.receiver(engine)
    tracemalloc.start()
    pair.send(kv, manifest)
    assert receiver.result().cause is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Both ends are here: the manifest with its ids several times over, and a few chunks of 130 kB.
    assert peak < kv.nbytes / 2


def test_secrets_are_not_on_the_wire() -> None:
    from kvferry.handoff.wire.manifest import seal

    secret = bytes(range(32))
    assert secret not in seal(manifest_of(), secret)
    assert secret != SECRET
