"""A conversation that changes hands: nothing is lost by the identity, and what adds up has a slope."""

from __future__ import annotations

import pytest

from kvferry.measure.retention.reader import Reader
from kvferry.measure.retention.turns import hand_on, slope

from .texts import Identity, Noise, letters


def test_the_identity_loses_nothing(reader: Reader) -> None:
    found = hand_on("d", letters(1, 400), reader, reader, Identity(), handoffs=3, turn_tokens=20)
    assert found is not None
    assert found.nll_difference == pytest.approx((0, 0, 0), abs=1e-4)
    assert found.kl == pytest.approx((0, 0, 0), abs=1e-4)
    assert found.top1 == (1.0, 1.0, 1.0)


def test_noise_loses_in_every_turn(reader: Reader) -> None:
    found = hand_on("d", letters(1, 400), reader, reader, Noise(), handoffs=3, turn_tokens=20)
    assert found is not None
    assert min(found.kl) > 0.01


def test_a_text_too_short_for_all_turns_is_none(reader: Reader) -> None:
    assert hand_on("d", letters(1, 100), reader, reader, Identity(), handoffs=3, turn_tokens=20) is None


def test_the_slope_is_the_line_s() -> None:
    assert slope([1.0, 3.0, 5.0]) == pytest.approx(2.0)
    assert slope([2.0, 2.0, 2.0]) == pytest.approx(0.0)
