from __future__ import annotations

import math

import pytest
import torch

from kvferry.engines.transformers.runner import Runner
from kvferry.measure.quality.continuation import agreeing_tokens, greedy, mean_nll, text_logits


def test_there_are_logits_behind_every_token(runner: Runner, prompt: list[int]) -> None:
    logits = text_logits(runner, runner.new_span(12), prompt[:12])
    assert logits.shape == (12, runner.vocabulary)


def test_logits_are_those_of_the_engine(runner: Runner, prompt: list[int]) -> None:
    last = text_logits(runner, runner.new_span(12), prompt[:12])[-1]
    assert torch.allclose(last, runner.prefill_chunk(runner.new_span(12), prompt[:12]), atol=1e-4)


def test_the_likelihood_of_even_odds() -> None:
    assert mean_nll(torch.zeros(3, 8), [1, 2, 3]) == pytest.approx(math.log(8))


def test_greedy_takes_the_likeliest(runner: Runner, prompt: list[int]) -> None:
    span = runner.new_span(16)
    runner.prefill_chunk(span, prompt[:12])
    said = greedy(runner, span, prompt[12], 3)
    logits = text_logits(runner, runner.new_span(16), [*prompt[:13], *said[:2]])
    assert logits[12:].argmax(-1).tolist() == said


@pytest.mark.parametrize(
    ("theirs", "agreeing"), [([1, 2, 3], 3), ([1, 2, 4], 2), ([0, 2, 3], 0)], ids=["all", "some", "none"]
)
def test_tokens_agree_up_to_the_first_that_differs(theirs: list[int], agreeing: int) -> None:
    assert agreeing_tokens([1, 2, 3], theirs) == agreeing
