"""A map applied whole, in chunks, as a stream, at other positions: always the same KV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from kvferry.errors import ModelError
from kvferry.handoff.mapping import mapper as module
from kvferry.handoff.mapping.heads import Wiring
from kvferry.handoff.mapping.mapper import LayerMap, Mapper, Outline
from kvferry.handoff.mapping.mlp import Mlp
from kvferry.handoff.mapping.ridge import Line
from kvferry.handoff.mapping.rope import apply_rope, strip_rope
from kvferry.handoff.mapping.shapes import LayerKv, ModelKv, Prefill

from .planted import Source, model_kv

SOURCE = model_kv("s", 3, 4, 8)
TARGET = model_kv("t", 2, 2, 6, theta=5e4)
IDS = list(range(40))


def a_map(inputs: str = "local", *, stripped: bool = True, mlp: bool = False) -> Mapper:
    generator = torch.Generator().manual_seed(8)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    local = inputs == "local"
    panels, outputs = (2, 6) if local else (1, 12)
    wiring, layers = [], []
    for sources in ((2, 0), (1,)):
        p = len(sources) * (8 if local else 32)
        matched = ((3, 1),) * len(sources) if local else ()
        wiring.append(Wiring(sources=sources, matched=matched))
        lines = [Line(random(panels, p, outputs), random(panels, outputs)) for _ in range(2)]
        network = Mlp(
            random(panels, p, 5), random(panels, 5), random(panels, 5, outputs), random(panels, outputs)
        )
        layers.append(LayerMap(lines[0], lines[1], network if mlp else None))
    outline = Outline(source=SOURCE, target=TARGET, wiring=tuple(wiring), stripped=stripped)
    return Mapper(outline, layers)


@pytest.fixture
def prefill() -> Prefill:
    return Source(SOURCE).prefill(IDS)


def same(one: Prefill, other: Prefill) -> None:
    for ours, theirs in zip(one.layers, other.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inputs", ["local", "full"])
@pytest.mark.parametrize("mlp", [False, True])
def test_it_is_the_line_over_gathered_inputs(prefill: Prefill, inputs: str, mlp: bool) -> None:
    mapper = a_map(inputs, mlp=mlp)
    found = mapper.apply(prefill)
    stripped = [
        strip_rope(layer.keys, shape.rope, prefill.positions)
        for layer, shape in zip(prefill.layers, SOURCE.layers, strict=True)
    ]
    layer, wiring = mapper.layers[0], mapper.outline.wiring[0]
    x = wiring.gather(stripped)
    plain = layer.keys(x) if layer.keys_mlp is None else layer.keys(x) + layer.keys_mlp(x)
    if inputs == "full":
        plain = plain.reshape(40, 2, 6).transpose(0, 1)
    expected = apply_rope(plain, TARGET.layers[0].rope, prefill.positions)
    torch.testing.assert_close(found.layers[0].keys, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inputs", ["local", "full"])
def test_chunks_change_nothing(prefill: Prefill, inputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = a_map(inputs).apply(prefill)
    monkeypatch.setattr(module, "CHUNK_TOKENS", 7)
    same(a_map(inputs).apply(prefill), whole)


def test_a_target_layer_comes_as_soon_as_its_last_source_layer(prefill: Prefill) -> None:
    sent: list[int] = []

    def coming() -> Iterator[LayerKv]:
        for number, layer in enumerate(prefill.layers):
            sent.append(number)
            yield layer

    order = [(index, list(sent)) for index, _ in a_map().stream(coming(), prefill.positions)]
    assert order == [(1, [0, 1]), (0, [0, 1, 2])]


@pytest.mark.parametrize("offset", [0, 17, 9000])
def test_keys_are_turned_for_where_the_tokens_stand(prefill: Prefill, offset: int) -> None:
    moved = a_map().apply(prefill, positions=prefill.positions + offset)
    later = Source(SOURCE).prefill(IDS, offset=offset)
    for ours, theirs in zip(moved.layers, a_map().apply(later).layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)


def test_sequences_side_by_side_are_mapped_as_if_alone(prefill: Prefill) -> None:
    other = Source(SOURCE).prefill([7, 8, 9], offset=100)
    layers = [
        LayerKv(torch.cat([a.keys, b.keys], 1), torch.cat([a.values, b.values], 1))
        for a, b in zip(prefill.layers, other.layers, strict=True)
    ]
    both = a_map().apply(Prefill(layers, torch.cat([prefill.positions, other.positions])))
    alone = a_map().apply(other)
    same(
        Prefill([LayerKv(one.keys[:, 40:], one.values[:, 40:]) for one in both.layers], alone.positions),
        alone,
    )


def test_it_comes_in_the_dtype_of_the_cache(prefill: Prefill) -> None:
    found = a_map().apply(prefill, dtype=torch.bfloat16)
    assert {part.dtype for layer in found.layers for part in (layer.keys, layer.values)} == {torch.bfloat16}


def test_without_a_dtype_it_comes_in_the_source_s(prefill: Prefill) -> None:
    half = Prefill([LayerKv(one.keys.half(), one.values.half()) for one in prefill.layers], prefill.positions)
    assert a_map().apply(half).layers[0].keys.dtype == torch.float16


def test_a_map_of_turned_keys_cannot_move_tokens(prefill: Prefill) -> None:
    with pytest.raises(ModelError, match="other positions"):
        a_map(stripped=False).apply(prefill, positions=prefill.positions + 1)


def test_a_missing_source_layer_is_named(prefill: Prefill) -> None:
    with pytest.raises(ModelError, match="before layer 2"):
        list(a_map().stream(prefill.layers[:2], prefill.positions))


def cut(layers: Sequence[LayerKv]) -> list[LayerKv]:
    return [LayerKv(one.keys[:, :5], one.values[:, :5]) for one in layers]


def test_a_layer_of_another_shape_is_refused(prefill: Prefill) -> None:
    with pytest.raises(ModelError, match="layer 0: KV"):
        list(a_map().stream(cut(prefill.layers), prefill.positions))


def test_the_digest_is_of_every_number() -> None:
    mapper, changed = a_map(), a_map()
    changed.layers[1].values.bias[0, 0] += 1e-3
    assert (a_map().digest() == mapper.digest(), changed.digest() == mapper.digest()) == (True, False)


def test_the_digest_is_of_the_models_too() -> None:
    outline = a_map().outline
    other = ModelKv(name="t", weights_revision="2", tokenizer="t", position="p", layers=TARGET.layers)
    changed = Outline(source=SOURCE, target=other, wiring=outline.wiring)
    assert Mapper(changed, a_map().layers).digest() != a_map().digest()


def test_wiring_to_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="no layer 3"):
        Outline(source=SOURCE, target=TARGET, wiring=(Wiring(sources=(3,)), Wiring(sources=(0,))))
