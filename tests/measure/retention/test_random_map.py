"""The random control: another's content, the map's own moments."""

from __future__ import annotations

import torch

from kvferry.handoff.mapping.contract import Context
from kvferry.handoff.mapping.rope import strip_rope
from kvferry.handoff.mapping.shapes import Prefill
from kvferry.measure.retention.random_map import aligned, at_depth, random_map
from kvferry.measure.retention.reader import Reader, read_context

TEXT = "abcd dcba acbd bcda aabb ccdd abab"


def made(reader: Reader, seed: int = 0) -> tuple[Prefill, Prefill]:
    context = read_context(TEXT, reader, reader)
    native = reader.prefill(context.target_ids)
    return native, random_map(context, native, native, (reader.kv, reader.kv), seed)


def test_it_has_the_map_s_moments_over_tokens(reader: Reader) -> None:
    native, random = made(reader)
    for shape, real, found in zip(reader.kv.layers, native.layers, random.layers, strict=True):
        turned = (strip_rope(one.keys, shape.rope, native.positions) for one in (real, found))
        for a, b in (turned, (real.values, found.values)):
            torch.testing.assert_close(a.mean(1), b.mean(1), atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(a.std(1), b.std(1), atol=1e-3, rtol=1e-3)


def test_it_has_none_of_the_map_s_content(reader: Reader) -> None:
    native, random = made(reader)
    a, b = native.layers[1].values, random.layers[1].values
    a, b = (one - one.mean(1, keepdim=True) for one in (a, b))
    assert (a - b).square().sum() > a.square().sum(), "a constant would be nearer"


def test_the_seed_decides(reader: Reader) -> None:
    assert torch.equal(made(reader, 1)[1].layers[0].keys, made(reader, 1)[1].layers[0].keys)
    assert not torch.equal(made(reader, 1)[1].layers[0].keys, made(reader, 2)[1].layers[0].keys)


def test_layers_are_taken_by_depth() -> None:
    assert [at_depth(index, 4, 7) for index in range(4)] == [0, 2, 4, 6]
    assert at_depth(0, 1, 5) == 0


def test_a_token_takes_the_last_that_ends_no_later() -> None:
    """abcdef as <s> ab cd ef </s> and as <s> abc d ef."""
    context = Context(
        text="abcdef",
        source_ids=(0, 1, 2, 3, 4),
        target_ids=(0, 1, 2, 3),
        source_spans=((0, 0), (0, 2), (2, 4), (4, 6), (0, 0)),
        target_spans=((0, 0), (0, 3), (3, 4), (4, 6)),
    )
    assert aligned(context) == [0, 1, 2, 3]
