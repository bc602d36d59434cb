"""Through a tier: sender and receiver need not meet, and each value is one frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crossing import CLOCK, SECRET, Engine, Receiver, failing, manifest_of, namespace, numbers

from kvferry.handoff.transports.tier import TierListener, TierOutgoing
from kvferry.handoff.wire.failed import Cut
from kvferry.handoff.wire.memory import HostKv
from kvferry.handoff.wire.sender import Sent, send
from kvferry.outcomes import Outcome
from kvferry.store.open import open_tier
from kvferry.store.tier import Put, Tier

NAMESPACE = namespace().digest()


@pytest.fixture
def tier(tmp_path: Path) -> Any:
    made = open_tier(f"files://{tmp_path}")
    yield made
    made.close()


def leave(tier: Tier, kv: np.ndarray[Any, Any], *, waits: bool = False, **options: Any) -> Sent:
    settings = {"secret": SECRET, "deadline": CLOCK.now() + 10, "clock": CLOCK} | options
    outgoing = settings.pop("outgoing", None) or TierOutgoing(
        tier, "h-1", NAMESPACE, SECRET, CLOCK, waits=waits
    )
    return send(HostKv(kv.view(np.uint8)), manifest_of(), lambda _: outgoing, **settings)


def take(tier: Tier, engine: Engine | None = None, **options: Any) -> Receiver:
    listener = TierListener(tier, "h-1", NAMESPACE, SECRET, CLOCK)
    return Receiver(listener.accept, engine or Engine(), **options)


def blocks(tier: Tier) -> int:
    return len(list(tier.scan(5.0)))


def test_a_prefill_is_left_and_found_later(tier: Tier) -> None:
    kv = numbers()
    assert leave(tier, kv).answer.reason == "left_in_tier"
    receiver = take(tier)
    assert receiver.result().cause is None
    assert np.array_equal(receiver.engine.carried, kv)
    assert blocks(tier) == 0


def test_the_second_of_two_receivers_gets_nothing(tier: Tier) -> None:
    first = TierListener(tier, "h-1", NAMESPACE, SECRET, CLOCK).accept(0)
    leave(tier, numbers())
    first.take_offer(CLOCK.now() + 5)
    received = take(tier).result()
    assert received.cause is Outcome.FAILED
    assert "another receiver" in received.detail
    first.close()
    assert take(tier).result().cause is None


def test_chunks_that_an_earlier_attempt_left_are_not_written_again(tier: Tier) -> None:
    kv, put = numbers(), []

    class Breaking(TierOutgoing):
        def chunk(self, index: int, *rest: Any) -> None:
            if index == 7 and not put:
                put.append(index)
                raise Cut("killed by the test")
            super().chunk(index, *rest)

    first = Breaking(tier, "h-1", NAMESPACE, SECRET, CLOCK)
    failing(lambda: leave(tier, kv, outgoing=first, attempts=1))
    again = leave(tier, kv)
    assert again.answer.from_chunk == 7
    receiver = take(tier)
    assert receiver.result().cause is None
    assert np.array_equal(receiver.engine.carried, kv)


def test_a_damaged_chunk_is_booked_corrupt(tier: Tier, tmp_path: Path) -> None:
    leave(tier, numbers())
    chunk = next(path for path in tmp_path.rglob("*") if path.is_file() and b"KVfr" in path.read_bytes()
                 and 8_000 < path.stat().st_size < 9_000)  # fmt: skip
    data = bytearray(chunk.read_bytes())
    data[-5] ^= 1
    chunk.write_bytes(bytes(data))
    received = take(tier, grace_seconds=0.3).result()
    assert received.cause is Outcome.CORRUPT


def test_a_sender_that_was_killed_half_way_is_late(tier: Tier) -> None:
    class Dying(TierOutgoing):
        def chunk(self, index: int, *rest: Any) -> None:
            if index >= 5:
                raise Cut("killed by the test")
            super().chunk(index, *rest)

    failing(lambda: leave(tier, numbers(), outgoing=Dying(tier, "h-1", NAMESPACE, SECRET, CLOCK), attempts=1))
    receiver = take(tier, arrival_seconds=0.5)
    assert receiver.result().cause is Outcome.LATE
    assert receiver.engine.layers is not None
    assert receiver.engine.layers.ready == 1


def test_kv_of_another_namespace_is_refused_by_name(tier: Tier) -> None:
    leave(tier, numbers())
    received = take(tier, Engine(space=namespace(tokenizer="other"))).result()
    assert received.cause is Outcome.INCOMPATIBLE
    assert "tokenizer is t there, other here" in received.detail


def test_no_key_of_another_secret_leads_to_a_hand_off(tier: Tier) -> None:
    leave(tier, numbers())
    other = b"\5" * 32
    listener = TierListener(tier, "h-1", NAMESPACE, other, CLOCK)
    received = Receiver(listener.accept, Engine(), secret=other, deadline=CLOCK.now() + 0.3).result()
    assert received.cause is Outcome.LATE


class Narrow:
    """A tier with room for the offer and three chunks."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.refused = 0

    def put(self, keys: Any, values: Any, timeout_seconds: float, **options: Any) -> bytes:
        if blocks(self._tier) >= 5:
            self.refused += 1
            return bytes([Put.FULL]) * len(keys)
        return self._tier.put(keys, values, timeout_seconds, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)


def test_a_full_tier_holds_the_sender_up_until_chunks_are_read(tier: Tier) -> None:
    narrow: Any = Narrow(tier)
    receiver, kv = take(tier), numbers()
    leave(narrow, kv)
    assert receiver.result().cause is None
    assert np.array_equal(receiver.engine.carried, kv)


def test_a_tier_that_stays_full_is_left_at_the_deadline(tier: Tier) -> None:
    narrow: Any = Narrow(tier)
    failure = failing(lambda: leave(narrow, numbers(), deadline=CLOCK.now() + 0.3))
    assert failure.cause is Outcome.LATE
    assert narrow.refused > 0
