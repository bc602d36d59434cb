from __future__ import annotations

import pytest
import torch

from kvferry.engines.transformers.runner import Runner
from kvferry.measure.quality.carried import fork, through
from kvferry.measure.quality.codecs import prefix_kv
from kvferry.store.codec import Codec


def test_a_raw_journey_changes_nothing(runner: Runner, codecs: dict[str, Codec], prompt: list[int]) -> None:
    kv = prefix_kv(runner, prompt[:32])
    assert torch.equal(through(codecs["raw"], kv), kv)


def test_a_lossy_journey_leaves_the_original_alone(
    runner: Runner, codecs: dict[str, Codec], prompt: list[int]
) -> None:
    kv = prefix_kv(runner, prompt[:32])
    before = kv.clone()
    assert not torch.equal(through(codecs["int4"], kv), kv)
    assert torch.equal(kv, before)


def test_blocks_are_carried_one_by_one(runner: Runner, codecs: dict[str, Codec], prompt: list[int]) -> None:
    """A block's scales are its own: what stands in another block makes no difference."""
    kv = prefix_kv(runner, prompt[:32])
    alone = through(codecs["int8"], kv[:, :, :, 8:16].contiguous())
    assert torch.equal(through(codecs["int8"], kv)[:, :, :, 8:16], alone)


def test_a_part_of_a_block_is_refused(runner: Runner, codecs: dict[str, Codec], prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="30 tokens are no whole blocks of 8"):
        through(codecs["int8"], prefix_kv(runner, prompt[:30]))


def test_a_fork_goes_on_as_the_original(runner: Runner, prompt: list[int]) -> None:
    span = runner.new_span(33)
    runner.prefill_chunk(span, prompt[:32])
    forked = fork(runner, span.kv[:, :, :, :32].clone(), 40)
    assert torch.equal(runner.decode(forked, 5), runner.decode(span, 5))
