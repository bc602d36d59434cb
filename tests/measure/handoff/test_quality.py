from __future__ import annotations

from collections.abc import Callable

import pytest

from kvferry.config import load
from kvferry.engines.transformers.runner import Runner
from kvferry.measure.handoff.namespace import handoff_namespace
from kvferry.measure.handoff.quality import measure_wire


def test_fewer_bits_cost_more(runner: Runner, prompts: Callable[..., list[int]]) -> None:
    found = measure_wire(
        runner,
        handoff_namespace(load().config, runner),
        prompts(120),
        ("raw", "bf16", "int8", "int4"),
        prefix_tokens=100,
        greedy_tokens=4,
    )
    raw = found["raw"]
    assert (raw.logit_error, raw.kl, raw.nll_difference) == (0.0, 0.0, 0.0)
    assert (raw.top1_agreement, raw.greedy_agreement) == (1.0, 1.0)
    assert 0.0 < found["int8"].logit_error < found["int4"].logit_error
    assert 0.0 < found["bf16"].logit_error < found["int4"].logit_error
    assert raw.bytes_per_token == runner.bytes_per_token
    assert found["int4"].bytes_per_token < found["int8"].bytes_per_token < found["bf16"].bytes_per_token


def test_something_must_follow(runner: Runner, prompts: Callable[..., list[int]]) -> None:
    with pytest.raises(ValueError, match="nothing to continue"):
        measure_wire(
            runner,
            handoff_namespace(load().config, runner),
            prompts(101),
            ("raw",),
            prefix_tokens=100,
            greedy_tokens=4,
        )
