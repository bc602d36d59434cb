"""Which map a file holds is read off its header; what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import FormatError, ModelError
from kvferry.handoff.mapping.contract import Context
from kvferry.handoff.mapping.file import save_map
from kvferry.handoff.mapping.heads import Wiring
from kvferry.handoff.mapping.mapper import LayerMap, Mapper, Outline
from kvferry.handoff.mapping.ridge import Line
from kvferry.measure.retention.opening import calibrated_positions, open_map
from kvferry.measure.retention.reader import Reader, read_context


@pytest.fixture
def file(model: Captured, tmp_path: Path) -> Path:
    """The closed-form map of a model to itself: every head its own line of slope one."""
    layers = []
    for shape in model.kv.layers:
        lines = [
            Line(torch.eye(width).repeat(shape.kv_heads, 1, 1), torch.zeros(shape.kv_heads, width))
            for width in (shape.key_width, shape.value_width)
        ]
        layers.append(LayerMap(*lines))
    heads = tuple(range(model.kv.layers[0].kv_heads))
    wiring = tuple(Wiring(sources=(at,), matched=(heads,)) for at in range(len(layers)))
    path = tmp_path / "map.safetensors"
    save_map(Mapper(Outline(source=model.kv, target=model.kv, wiring=wiring), layers), path)
    return path


def test_a_closed_form_map_carries_token_by_token(file: Path, model: Captured, reader: Reader) -> None:
    map_ = open_map(file, model.kv, model.kv)
    context = read_context("abcd dcba", reader, reader)
    native = reader.prefill(context.target_ids, offset=7)
    mapped = map_.carry(context, reader.prefill(context.source_ids), torch.arange(7, 16))
    for a, b in zip(native.layers, mapped.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(a.values, b.values, atol=1e-3, rtol=1e-3)


def test_other_tokens_are_refused(file: Path, model: Captured, reader: Reader) -> None:
    context = read_context("abcd", reader, reader)
    other = Context(context.text, context.source_ids, (1,), context.source_spans, ((0, 4),))
    with pytest.raises(ModelError, match="different tokens"):
        open_map(file, model.kv, model.kv).carry(other, reader.prefill(context.source_ids), torch.arange(1))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_map_of_other_models_is_refused(file: Path, model: Captured, side: str) -> None:
    other = msgspec.structs.replace(model.kv, weights_revision="other")
    pair = (other, model.kv) if side == "source" else (model.kv, other)
    with pytest.raises(FormatError, match=f"the map's {side} is"):
        open_map(file, *pair)


def test_a_map_without_facts_says_nothing_of_positions(file: Path, model: Captured) -> None:
    map_ = open_map(file, model.kv, model.kv)
    assert (calibrated_positions(map_), map_.trained_tokens) == (None, 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello, this is no map", b"\x02" + bytes(7) + b"{}", b"\x09" + bytes(7) + b"{"],
)
def test_what_is_no_map_is_refused(tmp_path: Path, model: Captured, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"no.? .*map.*kvferry handoff fit"):
        open_map(path, model.kv, model.kv)


def test_a_learned_map_is_opened_by_its_kind(tmp_path: Path, model: Captured) -> None:
    """What its own reader says of a file without numbers shows that it was asked."""
    header = json.dumps({"__metadata__": {"kind": "cross", "format": "kvferry-map"}}).encode()
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FormatError, match="cross map format"):
        open_map(path, model.kv, model.kv)


def test_a_missing_file_is_refused(tmp_path: Path, model: Captured) -> None:
    with pytest.raises(FormatError, match="no such file"):
        open_map(tmp_path / "none", model.kv, model.kv)
