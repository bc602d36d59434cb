"""A planted map is found through the whole of a fit, whatever the shapes of the two models."""

from __future__ import annotations

import pytest
import torch

from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.mlp import MlpSettings
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe

from .planted import Planted, Source, model_kv, text_of

SOURCE = model_kv("s", 4, 3, 8)
TARGET = model_kv("t", 3, 2, 6, theta=7e4)
FROM_LAYER, FROM_HEAD = (3, 0, 2), (2, 0)
RECIPES = {
    "local": Recipe(inputs="local", weighted=False, warm_rows=256, most_layers=2),
    "full": Recipe(inputs="full", weighted=False, warm_rows=256, most_layers=2),
    "local-weighted": Recipe(inputs="local", weighted=True, warm_rows=256, most_layers=2),
    "full-weighted": Recipe(inputs="full", weighted=True, warm_rows=256, most_layers=2),
}


def pair(**options: float) -> tuple[Source, Planted]:
    source = Source(SOURCE)
    return source, Planted(TARGET, source, FROM_LAYER, FROM_HEAD, **options)  # type: ignore[arg-type]


def worst(mapper: Mapper, source: Source, target: Planted, offset: int = 0) -> float:
    """Largest relative error of mapped KV on new tokens at `offset`."""
    ids = torch.randint(0, 900, (50,), generator=torch.Generator().manual_seed(99)).tolist()
    mapped = mapper.apply(source.prefill(ids, offset=offset))
    native = target.prefill(ids, offset=offset)
    return max(
        float((a - b).abs().max() / b.abs().max())
        for one, other in zip(mapped.layers, native.layers, strict=True)
        for a, b in ((one.keys, other.keys), (one.values, other.values))
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_planted_map_is_found(name: str) -> None:
    source, target = pair()
    mapper = fit_map(source, target, text_of(), RECIPES[name])
    assert worst(mapper, source, target) < 1e-3


def test_it_holds_far_past_the_calibrated_positions() -> None:
    source, target = pair()
    mapper = fit_map(source, target, text_of(), RECIPES["local"])
    assert mapper.facts is not None
    assert mapper.facts.positions == 64
    assert worst(mapper, source, target, offset=30_000) < 0.02


def test_a_map_of_turned_keys_collapses_there() -> None:
    source = Source(SOURCE)
    target = Planted(TARGET, source, FROM_LAYER, FROM_HEAD)
    recipe = Recipe(inputs="full", weighted=False, warm_rows=256, most_layers=2, stripped=False)
    mapper = fit_map(source, target, text_of(), recipe)
    ids = list(range(60))
    mapped, native = mapper.apply(source.prefill(ids, offset=5000)), target.prefill(ids, offset=5000)
    keys = torch.nn.functional.cosine_similarity(mapped.layers[0].keys, native.layers[0].keys, dim=-1)
    values = torch.nn.functional.cosine_similarity(mapped.layers[0].values, native.layers[0].values, dim=-1)
    assert float(keys.mean()) < 0.6
    assert float(values.mean()) > 0.999


def test_a_bias_that_dwarfs_the_keys_is_no_obstacle() -> None:
    source = Source(SOURCE, key_bias=50.0)
    target = Planted(TARGET, source, FROM_LAYER, FROM_HEAD)
    mapper = fit_map(source, target, text_of(), RECIPES["local"])
    assert worst(mapper, source, target) < 1e-3


def test_permuted_heads_are_wired_to_their_sources() -> None:
    source, target = pair(noise=0.1)
    mapper = fit_map(source, target, text_of(), RECIPES["local"])
    assert [(one.sources[0], one.matched[0]) for one in mapper.outline.wiring] == [
        (layer, FROM_HEAD) for layer in FROM_LAYER
    ]


def test_source_layers_that_only_add_noise_are_not_read() -> None:
    source, target = pair(noise=1.0)
    mapper = fit_map(source, target, text_of(), RECIPES["full"])
    assert mapper.facts is not None
    assert mapper.facts.source_layers == 1


def test_so_many_source_layers_as_were_asked_for_are_read() -> None:
    source, target = pair(noise=1.0)
    recipe = Recipe(weighted=False, warm_rows=256, most_layers=3, source_layers=3)
    mapper = fit_map(source, target, text_of(), recipe)
    assert {len(one.sources) for one in mapper.outline.wiring} == {3}


def test_local_inputs_make_the_map_as_much_smaller_as_the_source_has_heads() -> None:
    source, target = pair()
    sizes = {
        name: fit_map(source, target, text_of(), RECIPES[name]).layers[0].keys.weight.numel()
        for name in ("local", "full")
    }
    assert sizes["full"] == sizes["local"] * SOURCE.layers[0].kv_heads


def test_r2_is_of_the_test_documents_and_says_what_noise_left() -> None:
    source, target = pair(noise=0.5)
    facts = fit_map(source, target, text_of(), RECIPES["local"]).facts
    assert facts is not None
    ids = list(range(900))
    clean, noisy = Planted(TARGET, source, FROM_LAYER, FROM_HEAD).plain(ids), target.plain(ids)
    expected = 1 - float((clean[0][0] - noisy[0][0]).var() / noisy[0][0].var())
    assert facts.keys_r2[0] == pytest.approx(expected, abs=0.05)


def test_more_calibration_never_shows_fewer_rows_and_ends_at_the_map() -> None:
    source, target = pair(noise=0.5)
    facts = fit_map(source, target, text_of(), RECIPES["full"], checkpoints=(400, 700)).facts
    assert facts is not None
    assert [point.rows for point in facts.curve] == [448, 704, 1024]
    assert facts.curve[-1].keys_r2 == pytest.approx(sum(facts.keys_r2) / 3)
    assert facts.curve[0].keys_r2 < facts.curve[-1].keys_r2


def test_attention_s_cosine_is_one_where_the_map_is_exact() -> None:
    source, target = pair()
    facts = fit_map(source, target, text_of(), RECIPES["local"]).facts
    assert facts is not None
    assert facts.attention_cosine == pytest.approx((1.0,) * 3, abs=1e-4)


def test_a_network_is_added_where_the_relation_is_bent() -> None:
    source, target = pair(bent=True)
    recipe = Recipe(
        weighted=False, warm_rows=256, most_layers=1, mlp=MlpSettings(steps=200, hidden=48), mlp_rows=2048
    )
    mapper = fit_map(source, target, text_of(40), recipe)
    plain = fit_map(source, target, text_of(40), RECIPES["local"])
    assert mapper.facts is not None
    assert plain.facts is not None
    assert mapper.layers[0].keys_mlp is not None
    assert mapper.facts.keys_r2[0] > plain.facts.keys_r2[0] + 0.05


def test_a_stride_takes_every_so_many_tokens() -> None:
    source, target = pair()
    recipe = Recipe(weighted=True, warm_rows=128, most_layers=1, stride=4)
    facts = fit_map(source, target, text_of(40), recipe).facts
    assert facts is not None
    assert facts.rows == 40 * 16
