"""A map survives its file, and a changed file is not a map."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kvferry.errors import FormatError
from kvferry.handoff.mapping.file import load_map, save_map
from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.mlp import MlpSettings
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe

from .planted import Planted, Source, model_kv, text_of


@pytest.fixture(scope="module")
def mapper() -> Mapper:
    source = Source(model_kv("s", 2, 2, 6))
    target = Planted(model_kv("t", 2, 2, 6), source, (0, 1), (1, 0))
    recipe = Recipe(most_layers=1, warm_rows=128, mlp=MlpSettings(steps=5, margin=-9.0))
    return fit_map(source, target, text_of(6), recipe)


def rewritten(path: Path, header: dict[str, str], change: bool = False) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        header = {**file.metadata(), **header}
    if change:
        tensors["layers.0.keys.weight"][0, 0, 0] += 1e-3
    save_file(tensors, path, metadata=header)


def test_what_is_written_is_read(mapper: Mapper, tmp_path: Path) -> None:
    size = save_map(mapper, tmp_path / "map.safetensors")
    found = load_map(tmp_path / "map.safetensors")
    assert (found.digest(), found.outline, found.facts) == (mapper.digest(), mapper.outline, mapper.facts)
    assert size == (tmp_path / "map.safetensors").stat().st_size


def test_its_networks_are_read_too(mapper: Mapper, tmp_path: Path) -> None:
    save_map(mapper, tmp_path / "m")
    network = load_map(tmp_path / "m").layers[0].keys_mlp
    assert network is not None
    assert mapper.layers[0].keys_mlp is not None
    torch.testing.assert_close(network.into, mapper.layers[0].keys_mlp.into)


def test_nothing_is_left_beside_it(mapper: Mapper, tmp_path: Path) -> None:
    save_map(mapper, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_changed_number_is_noticed(mapper: Mapper, tmp_path: Path) -> None:
    save_map(mapper, tmp_path / "m")
    rewritten(tmp_path / "m", {}, change=True)
    with pytest.raises(FormatError, match="digest"):
        load_map(tmp_path / "m")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"format": "pt"}, "no map"),
        ({"version": "99"}, "format 99"),
        ({"outline": "{}"}, "header"),
        ({"kind": "cross"}, "kind 'cross', not 'closed form'"),
    ],
)
def test_another_file_is_refused(mapper: Mapper, tmp_path: Path, header: dict[str, str], words: str) -> None:
    save_map(mapper, tmp_path / "m")
    rewritten(tmp_path / "m", header)
    with pytest.raises(FormatError, match=words):
        load_map(tmp_path / "m")


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match="not a map"):
        load_map(tmp_path / "m")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        load_map(tmp_path / "m")
