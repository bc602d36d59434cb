"""A closed-form map as a file: numbers by layer, everything else in the header.

Owns which numbers and fields there are; its digest is checked on reading, so that a changed number is never
used. How a map of any kind lies on a disk is `container.py`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from ...errors import FormatError
from .container import MapKind, read_container, write_container
from .mapper import Facts, LayerMap, Mapper, Outline
from .mlp import Mlp
from .ridge import Line

__all__ = ["CLOSED_FORM", "layer_of", "load_map", "save_map"]

CLOSED_FORM = MapKind("closed form", 1, "kvferry handoff fit", "fit it again")


def save_map(mapper: Mapper, path: Path) -> int:
    """Write the map; its size in bytes."""
    tensors = {
        f"layers.{index}.{name}": tensor.detach().cpu().contiguous()
        for index, layer in enumerate(mapper.layers)
        for name, tensor in layer.tensors().items()
    }
    fields = {
        "digest": mapper.digest(),
        "outline": msgspec.json.encode(mapper.outline).decode(),
        "facts": "" if mapper.facts is None else msgspec.json.encode(mapper.facts).decode(),
    }
    return write_container(path, CLOSED_FORM, tensors, fields)


def load_map(path: Path, *, device: str = "cpu") -> Mapper:
    """Read a map. Raises `FormatError` where it is none, is of another kind or version, or was changed."""
    header, tensors = read_container(path, CLOSED_FORM, device=device)
    try:
        outline = msgspec.json.decode(header["outline"], type=Outline)
        facts = msgspec.json.decode(header["facts"], type=Facts) if header.get("facts") else None
        layers = [layer_of(tensors, index) for index in range(len(outline.wiring))]
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
        raise FormatError(f"{path}: its header does not describe its numbers: {error}") from error
    mapper = Mapper(outline, layers, facts)
    if mapper.digest() != header.get("digest"):
        raise FormatError(f"{path}: its digest is not that of its numbers; the map is not used: fit it again")
    return mapper


def layer_of(tensors: dict[str, torch.Tensor], index: int) -> LayerMap:
    """The map of one layer from tensors as they are named in a file. Raises KeyError where they are not."""

    def line(name: str) -> Line:
        return Line(tensors[f"layers.{index}.{name}.weight"], tensors[f"layers.{index}.{name}.bias"])

    def mlp(name: str) -> Mlp | None:
        place = f"layers.{index}.{name}.mlp."
        parts: dict[str, Any] = {
            key.removeprefix(place): tensor for key, tensor in tensors.items() if key.startswith(place)
        }
        return Mlp(**parts) if parts else None

    return LayerMap(line("keys"), line("values"), mlp("keys"), mlp("values"))
