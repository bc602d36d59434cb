from __future__ import annotations

import random

import pytest
from hypothesis import given
from traffic import BLOCK, Prompt, prompts, public, touched, trace_of

from kvferry.analysis.analyse import Question, analyse
from kvferry.analysis.reuse import Curve
from kvferry.analysis.sampled import Sample


def curves(asked: list[Prompt], rate: float) -> tuple[Curve, Sample, int]:
    curve, sample, tokens = Curve(BLOCK), Sample(rate, compiled=False), 0
    for part in touched(trace_of(asked)):
        curve.add(part.depth, part.tokens, part.full)
        sample.add(part)
        tokens += int(part.input_tokens.sum())
    return curve, sample, tokens


@given(asked=prompts)
def test_a_sample_of_all_is_exact(asked: list[Prompt]) -> None:
    curve, sample, tokens = curves(asked, 1.0)
    for room in range(1, 20):
        by_token, useful = sample.hit_ratios(room, tokens)
        assert by_token == pytest.approx(curve.hit_tokens(room) / tokens if tokens else 0.0)
        assert useful == pytest.approx(curve.useful_tokens(room) / tokens if tokens else 0.0)


def test_a_tenth_of_the_blocks_comes_near() -> None:
    dice = random.Random(3)
    asked = [("".join(dice.choices("abc", k=7)), 0) for _ in range(3000)]
    curve, sample, tokens = curves(asked, 0.1)
    assert 0.05 < sample.blocks / 3000 < 0.2
    for room in (100, 300, 1000, 3000):
        assert abs(sample.hit_ratios(room, tokens)[0] - curve.hit_tokens(room) / tokens) < 0.1


def test_the_error_is_told_beside_the_curve() -> None:
    found = analyse(public("conversation_trace.jsonl"), Question()).sampled
    assert found is not None
    assert 0 < found.mean_error < found.worst_error < 0.01
