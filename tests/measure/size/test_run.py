"""Caches of real forward passes against the formula, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from kvferry.engines.transformers.cache_bytes import cache_bytes, random_model
from kvferry.errors import ModelError
from kvferry.measure.size.run import Measured, measure_config, measure_model, measure_tiny
from kvferry.measure.size.tiny import TINY, tiny_config
from kvferry.model.config import from_config
from kvferry.model.layouts.setup import Setup
from kvferry.model.size import size_of


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_weighs_what_is_computed(name: str) -> None:
    measured = measure_config(name, tiny_config(name), (40, 72))
    assert measured.agrees, measured


@pytest.mark.parametrize("name", ["GQA with head_dim", "sliding and full, of unlike heads", "KDA and MLA"])
def test_what_the_library_writes_is_read_alike(name: str) -> None:
    """A config that transformers has completed says the same as the one that it was made from."""
    completed = {**random_model(tiny_config(name)).config, "dtype": "float32"}
    sizes = [
        size_of(from_config(fields, name), Setup(engine="transformers"), layers=False)
        for fields in (completed, {**tiny_config(name), "dtype": "float32"})
    ]
    assert sizes[0].growing_bytes_per_token == sizes[1].growing_bytes_per_token
    assert sizes[0].fixed_bytes_per_request == sizes[1].fixed_bytes_per_request


def test_every_kind_of_layer_is_measured() -> None:
    kinds: set[str] = set()
    for name in TINY:
        kinds |= {layer.kind for layer in from_config({**tiny_config(name), "dtype": "float32"}, name).layers}
    assert kinds == {
        "full",
        "sliding",
        "chunked",
        "mla",
        "mla+indexer",
        "shared",
        "none",
        "gdn",
        "kda",
        "lightning",
        "mamba1",
        "mamba2",
        "full+mamba2",
        "short_conv",
    }


def test_all_of_them_are_measured_in_turn() -> None:
    first = next(measure_tiny())
    assert first.name == next(iter(TINY))


def test_a_figure_that_differs_is_said_to() -> None:
    fields: dict[str, Any] = {
        "name": "x",
        "architecture": "x",
        "kinds": ("full",),
        "prefixes": (1, 2),
        "bytes": (8, 16),
        "measured_growing_bytes_per_token": 8.0,
        "measured_fixed_bytes_per_request": 0.0,
        "fixed_bytes_per_request": 0,
    }
    assert Measured(**fields, growing_bytes_per_token=8).agrees
    assert not Measured(**fields, growing_bytes_per_token=9).agrees


def test_the_measure_is_of_bytes_and_not_of_the_formula() -> None:
    held = random_model(tiny_config("MHA"))
    one, two = cache_bytes(held, (5, 6))
    assert two - one == 3 * 2 * 48 * 4


def test_a_model_that_cannot_be_built() -> None:
    with pytest.raises(ModelError, match="transformers cannot build it"):
        random_model({"model_type": "nonsense"})


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="no model 'nothing'"):
        measure_model("nothing")


@pytest.mark.real_model
def test_the_packaged_model_weighs_what_is_computed() -> None:
    measured = measure_model("smollm2-135m-instruct")
    assert measured.agrees
    assert measured.growing_bytes_per_token == 46_080


@pytest.mark.parametrize("name", ["MLA", "KDA and MLA", "sliding and full with sinks"])
def test_the_library_s_words_stay_inside(capfd: pytest.CaptureFixture[str], name: str) -> None:
    measure_config(name, tiny_config(name), (40, 72))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
