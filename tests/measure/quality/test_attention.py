from __future__ import annotations

import pytest
import torch

from kvferry.engines.transformers.runner import Runner
from kvferry.measure.quality.attention import Witness, attention_errors
from kvferry.measure.quality.carried import fork
from kvferry.measure.quality.codecs import prefix_kv
from kvferry.measure.quality.continuation import text_logits


@pytest.fixture
def seen(runner: Runner, prompt: list[int]) -> tuple[Witness, torch.Tensor]:
    """The attention of twelve tokens behind a prefix, and the prefix's KV."""
    kv = prefix_kv(runner, prompt[:32])
    with Witness() as witness:
        text_logits(runner, fork(runner, kv, 44), prompt[32:44])
    return witness, kv


def test_every_layer_is_seen(seen: tuple[Witness, torch.Tensor]) -> None:
    witness, _ = seen
    assert [(call.query.shape[2], call.key.shape[2]) for call in witness.calls] == [(12, 44), (12, 44)]


def test_nothing_is_seen_outside(seen: tuple[Witness, torch.Tensor], runner: Runner) -> None:
    witness, kv = seen
    text_logits(runner, fork(runner, kv, 33), [1])
    assert len(witness.calls) == 2


def test_a_witness_changes_nothing(
    seen: tuple[Witness, torch.Tensor], runner: Runner, prompt: list[int]
) -> None:
    _, kv = seen
    alone = text_logits(runner, fork(runner, kv, 44), prompt[32:44])
    with Witness():
        assert torch.equal(text_logits(runner, fork(runner, kv, 44), prompt[32:44]), alone)


def test_the_same_kv_makes_no_error(seen: tuple[Witness, torch.Tensor]) -> None:
    witness, kv = seen
    assert attention_errors(witness.calls, kv) == [0.0, 0.0]


def test_an_error_in_the_values_of_one_layer_is_of_that_layer(seen: tuple[Witness, torch.Tensor]) -> None:
    witness, kv = seen
    wrong = kv.clone()
    wrong[1, 1] *= 1.1
    first, second = attention_errors(witness.calls, wrong)
    assert first == 0.0
    assert 0.0 < second <= 0.1001


def test_values_twice_as_large_double_what_they_give(runner: Runner, prompt: list[int]) -> None:
    """All that is attended to is in the prefix but the token itself, whose weight is small."""
    kv = prefix_kv(runner, prompt[:32])
    with Witness() as witness:
        text_logits(runner, fork(runner, kv, 33), prompt[32:33])
    weights = [attention_weights(call.query, call.key) for call in witness.calls]
    expected = []
    for call, weight in zip(witness.calls, weights, strict=True):
        heads = call.query.shape[1] // call.value.shape[1]
        values = call.value[0].repeat_interleave(heads, dim=0)
        of_prefix = weight[..., :32] @ values[:, :32]
        expected.append(float(of_prefix.norm() / (weight @ values).norm()))
    doubled = kv.clone()
    doubled[:, 1] *= 2
    assert attention_errors(witness.calls, doubled) == pytest.approx(expected, rel=1e-4)


def attention_weights(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Of one query token, [heads, 1, tokens]."""
    keys = key[0].repeat_interleave(query.shape[1] // key.shape[1], dim=0)
    return torch.softmax(query[0] @ keys.transpose(1, 2) / query.shape[-1] ** 0.5, dim=-1)


def test_an_engine_with_another_attention_is_refused(seen: tuple[Witness, torch.Tensor]) -> None:
    _, kv = seen
    with pytest.raises(ValueError, match="0 calls of attention for 2 layers"):
        attention_errors([], kv)
