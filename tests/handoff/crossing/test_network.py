"""The network: a line until it is trained, blind to what comes later, exact about the first token."""

from __future__ import annotations

import msgspec
import pytest
import torch
from two_families import SOURCE, TARGET, context, prefill, shape

from kvferry.errors import ModelError
from kvferry.handoff.crossing.align import Alignment, align
from kvferry.handoff.crossing.features import source_rows, spread_layers
from kvferry.handoff.crossing.network import CrossNetwork, CrossShape, cut_outputs, output_blocks
from kvferry.handoff.mapping.rope import apply_rope
from kvferry.handoff.mapping.shapes import LayerKv, Prefill


def stirred(made: CrossShape, seed: int = 1) -> CrossNetwork:
    """A network whose every number is random, as if it were trained."""
    network = CrossNetwork(made, seed=seed).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for one in network.parameters():
        one.copy_(torch.randn(one.shape, generator=generator) * 0.3)
    network.codes.copy_(torch.randn(network.codes.shape, generator=generator))
    return network


def read(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Alignment]:
    text = context(tokens, seed)
    rows = source_rows(SOURCE, prefill(SOURCE, len(text.source_ids), seed), (0, 2))
    return rows, torch.tensor(text.target_ids), align(text.source_spans, text.target_spans)


def test_layers_have_the_targets_shapes() -> None:
    layers = stirred(shape())(*read(6))
    assert [tuple(layer.keys.shape) for layer in layers] == [(2, 6, 4), (2, 6, 4)]
    assert [tuple(layer.values.shape) for layer in layers] == [(2, 6, 4), (2, 6, 4)]


def test_untrained_blocks_add_nothing() -> None:
    with_blocks, without = CrossNetwork(shape(blocks=2)), CrossNetwork(shape(blocks=0))
    given = read(6)
    for network in (with_blocks, without):
        with torch.no_grad():
            network.enter.copy_(torch.eye(*network.enter.shape))
            network.leave.fill_(0.5)
    for ours, theirs in zip(with_blocks(*given), without(*given), strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_a_token_does_not_see_the_text_behind_it() -> None:
    network = stirred(shape(blocks=2))
    rows, ids, alignment = read(8)
    before = network(rows, ids, alignment)
    seen = int(alignment.read[4]) + 1
    rows = torch.cat([rows[:seen], torch.randn(rows.shape[0] - seen, rows.shape[1])])
    ids = torch.cat([ids[:5], (ids[5:] + 1) % 30])
    for ours, theirs in zip(before, network(rows, ids, alignment), strict=True):
        torch.testing.assert_close(ours.keys[:, :5], theirs.keys[:, :5])
        assert not torch.allclose(ours.keys[:, 5:], theirs.keys[:, 5:])


def test_a_token_sees_the_source_before_it() -> None:
    network = stirred(shape(blocks=1, code_width=0))
    rows, ids, alignment = read(8)
    changed = rows.clone()
    unread = next(at for at in range(2, 8) if at not in alignment.read.tolist())
    changed[unread] += 1
    last = [
        layers[0].values[:, -1]
        for layers in (network(rows, ids, alignment), network(changed, ids, alignment))
    ]
    assert not torch.allclose(*last)


def test_the_first_token_is_the_same_in_every_text() -> None:
    network = stirred(shape())
    one, other = network(*read(5, 0)), network(*read(7, 1))
    assert torch.equal(one[1].keys[:, 0], other[1].keys[:, 0])
    assert not torch.equal(one[1].keys[:, 1], other[1].keys[:, 1])


def test_a_source_token_without_a_past_is_not_read() -> None:
    network = stirred(shape(blocks=0))
    rows, ids, _ = read(4)
    alignment = Alignment(torch.tensor([1, 0, 2, 3]))
    changed = rows.clone()
    changed[0] = 1e3
    assert torch.equal(network(rows, ids, alignment)[0].keys, network(changed, ids, alignment)[0].keys)


def test_rows_do_not_depend_on_where_the_source_stands() -> None:
    here, there = prefill(SOURCE, 5, start=0), prefill(SOURCE, 5, start=300)
    torch.testing.assert_close(
        source_rows(SOURCE, here, (0, 1)), source_rows(SOURCE, there, (0, 1)), atol=1e-4, rtol=1e-4
    )


def test_outputs_are_cut_in_the_order_of_their_blocks() -> None:
    row = torch.arange(TARGET.numbers_per_token).float()[None]
    layers = cut_outputs(row, TARGET)
    flat = [part[head, 0] for layer in layers for part in (layer.keys, layer.values) for head in range(2)]
    for (start, stop), numbers in zip(output_blocks(TARGET.layers), flat, strict=True):
        assert numbers.tolist() == list(range(start, stop))


def test_what_does_not_fit_is_refused() -> None:
    network = stirred(shape())
    rows, ids, alignment = read(4)
    with pytest.raises(ModelError, match="3 target tokens, 4 are aligned"):
        network(rows, ids[:3], alignment)
    with pytest.raises(ModelError, match="token 30: the map knows 30 tokens"):
        network(rows, ids.clone().fill_(30), alignment)
    with pytest.raises(ModelError, match=r"source token \d is read, 2 came"):
        network(rows[:2], ids, alignment)
    with pytest.raises(ModelError, match="has layers 0 to 2"):
        msgspec.structs.replace(shape(), reads=(0, 3))
    with pytest.raises(ModelError, match="not 2 heads of an even size"):
        shape(width=18)


def test_kv_of_another_model_is_refused() -> None:
    with pytest.raises(ModelError, match="KV of 2 layers came, ours has 3"):
        source_rows(SOURCE, prefill(TARGET, 4), (0,))
    layer = LayerKv(torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))
    with pytest.raises(ModelError, match="layer 0: keys"):
        source_rows(SOURCE, Prefill([layer] * 3, torch.arange(4)), (0,))


def test_layers_are_spread_over_the_depth() -> None:
    assert spread_layers(18, 4) == (0, 6, 11, 17)
    assert spread_layers(3, 8) == (0, 1, 2)
    assert spread_layers(9, 1) == (4,)


def test_half_precision_is_stripped_as_it_was_turned() -> None:
    exact = prefill(SOURCE, 6, start=500)
    stripped = source_rows(SOURCE, exact, (0,))[:, :8]
    rope = SOURCE.layers[0].rope
    short = apply_rope(stripped[None], rope, exact.positions, rounded_to=torch.bfloat16).bfloat16()
    layers = [LayerKv(short, layer.values.bfloat16()) for layer in exact.layers]
    again = source_rows(SOURCE, Prefill(layers, exact.positions), (0,))[:, :8]
    torch.testing.assert_close(again, stripped, atol=0.03, rtol=0.03)
