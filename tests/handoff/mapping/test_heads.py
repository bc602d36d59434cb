"""The order of inputs: by source layer, the best first, heads within."""

from __future__ import annotations

import pytest
import torch

from kvferry.errors import ModelError
from kvferry.handoff.mapping.heads import Wiring

LAYERS = [torch.arange(24.0).reshape(2, 3, 4), -torch.arange(24.0).reshape(2, 3, 4)]
"""Two layers of [2 heads, 3 tokens, 4]."""


def test_full_inputs_are_all_heads_of_each_layer_in_turn() -> None:
    x = Wiring(sources=(1, 0)).gather(LAYERS)
    assert x.shape == (1, 3, 16)
    assert x[0, 1].tolist() == [
        *LAYERS[1][0, 1].tolist(),
        *LAYERS[1][1, 1].tolist(),
        *LAYERS[0][0, 1].tolist(),
        *LAYERS[0][1, 1].tolist(),
    ]


def test_local_inputs_are_the_matched_head_of_each_layer() -> None:
    x = Wiring(sources=(1, 0), matched=((1, 0, 0), (0, 0, 1))).gather(LAYERS, slice(2, 3))
    assert x.shape == (3, 1, 8)
    assert x[2, 0].tolist() == [*LAYERS[1][0, 2].tolist(), *LAYERS[0][1, 2].tolist()]


@pytest.mark.parametrize("matched", [(), ((0, 1), (1, 0))])
def test_fewer_layers_are_the_first_columns(matched: tuple[tuple[int, ...], ...]) -> None:
    wiring = Wiring(sources=(1, 0), matched=matched)
    width = wiring.first(1).width([2, 2], [4, 4])
    torch.testing.assert_close(wiring.gather(LAYERS)[..., :width], wiring.first(1).gather(LAYERS))


@pytest.mark.parametrize(("matched", "shape"), [((), (1, 3, 8)), (((0, 1),), (2, 3, 4))])
def test_outputs_have_the_panels_of_the_inputs(
    matched: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> None:
    wiring = Wiring(sources=(0,), matched=matched)
    assert tuple(wiring.shape_outputs(LAYERS[0]).shape) == shape
    assert wiring.panels(2) == shape[0]


@pytest.mark.parametrize(("sources", "matched"), [((), ()), ((0, 1), ((0, 1),))])
def test_wiring_that_does_not_add_up_is_refused(
    sources: tuple[int, ...], matched: tuple[tuple[int, ...], ...]
) -> None:
    with pytest.raises(ModelError):
        Wiring(sources=sources, matched=matched)
