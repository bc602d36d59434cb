from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.handoff.wire.booking import book
from kvferry.handoff.wire.legs import ReceiverLegs, SenderLegs, dominant_leg
from kvferry.outcomes import HITS, Outcome

CAUSES = st.sampled_from([None, Outcome.LATE, Outcome.CORRUPT, Outcome.DECLINED, Outcome.FAILED])


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50), CAUSES)
def test_the_parts_sum_to_the_prompt(local: int, handed: int, rest: int, cause: Outcome | None) -> None:
    ledger = book(local + handed + rest, handed, local_tokens=local, cause=cause)
    assert sum(ledger.values()) == local + handed + rest
    assert ledger.get(cause or Outcome.HANDOFF, 0) == handed
    # Never a prefix hit, whatever it crossed.
    assert set(ledger) & HITS <= {Outcome.DEVICE_HIT, Outcome.HANDOFF}


def test_more_than_the_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt of 10"):
        book(10, 11)


@pytest.mark.parametrize(
    ("sender", "receiver", "leg"),
    [
        ({"device_to_host_seconds": 3.0, "send_seconds": 1.0}, {"receive_seconds": 4.0}, "device_to_host"),
        ({"encode_seconds": 3.0, "send_seconds": 0.1}, {"receive_seconds": 3.1}, "encode"),
        ({"send_seconds": 5.0, "encode_seconds": 1.0}, {"receive_seconds": 5.0}, "wire"),
        ({"send_seconds": 5.0}, {"receive_seconds": 0.5, "decode_seconds": 4.0}, "decode"),
        ({"send_seconds": 5.0}, {"receive_seconds": 0.5, "host_to_device_seconds": 4.0}, "host_to_device"),
        ({"prefill_seconds": 9.0, "send_seconds": 1.0}, {"receive_seconds": 9.0}, "remote_prefill"),
    ],
)
def test_the_leg_that_is_waited_for_is_named(
    sender: dict[str, float], receiver: dict[str, float], leg: str
) -> None:
    assert dominant_leg(SenderLegs(**sender), ReceiverLegs(**receiver)) == leg  # type: ignore[arg-type]
