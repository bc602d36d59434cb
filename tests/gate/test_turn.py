"""The bandwidth at which a decision turns."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from situations import FACTS, SEGMENT, facts, loadable_facts

from kvferry.gate.decide import decide
from kvferry.gate.facts import Facts, GateTerms
from kvferry.gate.turn import turning_rate

TERMS = GateTerms()


def test_by_hand() -> None:
    size = 64 * 16 * 1024
    steady = facts(segment={"spread_high": 1.0, "setup_seconds": 0.004})
    recompute = 0.002 + 0.0005 * 1024 + 1e-8 * 1024 * 512
    assert turning_rate(steady, TERMS) == pytest.approx(size / (recompute * 0.95 - 0.004), rel=1e-6)


@given(loadable_facts())
def test_the_decision_turns_there(facts: Facts) -> None:
    rate = turning_rate(facts, TERMS)
    if not 0.0 < rate < math.inf:
        return
    for factor, loads in ((1.001, True), (0.999, False)):
        last = msgspec.structs.replace(facts.segments[-1], seconds_per_byte=1.0 / (rate * factor))
        varied = msgspec.structs.replace(facts, segments=(*facts.segments[:-1], last))
        assert decide(varied, TERMS).loads is loads


def test_over_no_link_does_it_pay_when_the_setup_alone_takes_longer() -> None:
    assert turning_rate(facts(segment={"setup_seconds": 100.0}), TERMS) == math.inf


def test_over_any_link_does_it_pay_when_another_segment_pays_by_itself() -> None:
    far = msgspec.structs.replace(SEGMENT, tier=1, stop_block=63)
    near = msgspec.structs.replace(SEGMENT, stop_block=62)
    assert turning_rate(msgspec.structs.replace(FACTS, segments=(near, far)), TERMS) == 0.0


def test_without_anything_found_there_is_no_link() -> None:
    with pytest.raises(ValueError, match="no link to vary"):
        turning_rate(facts(segments=()), TERMS)
