"""A trained map as everybody asks it: in place, in kind, and told from its control."""

from __future__ import annotations

import pytest
import torch
from test_network import stirred
from two_families import SOURCE, TARGET, context, prefill, shape

from kvferry.errors import FormatError, ModelError
from kvferry.handoff.crossing.crossmap import CrossFacts, CrossMap, random_map
from kvferry.handoff.mapping.contract import KvMap
from kvferry.handoff.mapping.rope import strip_rope
from kvferry.handoff.mapping.shapes import Prefill

TEXT = context(8)


def ours() -> Prefill:
    return prefill(SOURCE, len(TEXT.source_ids))


def stripped(made: Prefill, layer: int = 0) -> torch.Tensor:
    return strip_rope(made.layers[layer].keys, TARGET.layers[layer].rope, made.positions)


def test_it_is_a_map_as_the_contract_says() -> None:
    made: KvMap = CrossMap(stirred(shape()))
    carried = made.carry(TEXT, ours(), torch.arange(8))
    assert [tuple(layer.keys.shape) for layer in carried.layers] == [(2, 8, 4)] * 2
    assert carried.tokens == 8
    assert made.name == "cross"


def test_keys_are_turned_where_the_tokens_stand() -> None:
    made = CrossMap(stirred(shape()))
    here, there = (made.carry(TEXT, ours(), torch.arange(8) + start) for start in (0, 700))
    assert not torch.allclose(here.layers[0].keys, there.layers[0].keys, atol=0.1)
    torch.testing.assert_close(stripped(here), stripped(there), atol=1e-3, rtol=1e-3)
    assert torch.equal(here.layers[0].values, there.layers[0].values)


def test_kv_comes_in_the_dtype_of_the_targets_cache() -> None:
    carried = CrossMap(stirred(shape()), dtype=torch.bfloat16).carry(TEXT, ours(), torch.arange(8))
    assert {part.dtype for one in carried.layers for part in (one.keys, one.values)} == {torch.bfloat16}
    assert (
        CrossMap(stirred(shape())).carry(TEXT, ours(), torch.arange(8)).layers[0].keys.dtype == torch.float32
    )


def test_the_control_has_the_maps_moments_and_other_directions() -> None:
    made = CrossMap(stirred(shape(blocks=0, width=64)))
    control = random_map(made, seed=3)
    text = context(600)
    given = prefill(SOURCE, len(text.source_ids))
    one, other = (stripped(each.carry(text, given, torch.arange(600)), 1)[:, 1:] for each in (made, control))
    ratio = other.std((0, 1)) / one.std((0, 1))
    assert float(ratio.min()) > 0.5
    assert float(ratio.max()) < 2
    torch.testing.assert_close(made.network.leave_bias, control.network.leave_bias)
    cosine = torch.nn.functional.cosine_similarity(
        (one - one.mean(1, keepdim=True)).flatten(), (other - other.mean(1, keepdim=True)).flatten(), dim=0
    )
    assert abs(float(cosine)) < 0.3


def test_a_seed_gives_one_control() -> None:
    made = CrossMap(stirred(shape()))
    same = [random_map(made, seed=seed).network.leave for seed in (3, 3, 4)]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[0], same[2])


def test_the_digest_is_of_what_comes_out() -> None:
    facts = CrossFacts(
        kvferry="0", trained_tokens=7, calibration_tokens=5, steps=1, positions=8, device="one"
    )
    network = stirred(shape())
    made = CrossMap(network, facts)
    assert made.digest() == CrossMap(stirred(shape())).digest()
    assert (made.trained_tokens, made.positions) == (12, 8)
    before = made.digest()
    network.first[3] += 1e-3
    assert made.digest() != before


def test_another_model_is_refused_by_name() -> None:
    made = CrossMap(stirred(shape()))
    made.check(SOURCE, TARGET)
    with pytest.raises(FormatError, match="the map's target is theirs; ours differs in weights_revision"):
        made.check(SOURCE, SOURCE)


def test_what_does_not_belong_together_is_refused() -> None:
    made = CrossMap(stirred(shape()))
    with pytest.raises(ModelError, match="source tokens with 13 spans and KV of 4 tokens"):
        made.carry(TEXT, prefill(SOURCE, 4), torch.arange(8))
    with pytest.raises(ModelError, match="7 positions for 8 tokens"):
        made.carry(TEXT, ours(), torch.arange(7))
