"""A map as a safetensors file: numbers by layer, everything else as JSON in its header.

Owns the format. The file is written beside its place and renamed into it, so that half a map is never seen,
and its digest is checked on reading, so that a changed number is never used.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...errors import FormatError, MissingExtra
from .mapper import Facts, LayerMap, Mapper, Outline
from .mlp import Mlp
from .ridge import Line

__all__ = ["FORMAT", "FORMAT_VERSION", "layer_of", "load_map", "save_map"]

FORMAT = "kvferry-map"
FORMAT_VERSION = 1


def save_map(mapper: Mapper, path: Path) -> int:
    """Write the map; its size in bytes."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("writing a map", "transformers") from error
    tensors = {
        f"layers.{index}.{name}": tensor.detach().cpu().contiguous()
        for index, layer in enumerate(mapper.layers)
        for name, tensor in layer.tensors().items()
    }
    header = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "digest": mapper.digest(),
        "outline": msgspec.json.encode(mapper.outline).decode(),
        "facts": "" if mapper.facts is None else msgspec.json.encode(mapper.facts).decode(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        save_file(tensors, beside, metadata=header)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path.stat().st_size


def load_map(path: Path, *, device: str = "cpu") -> Mapper:
    """Read a map. Raises `FormatError` where it is none, is of another version, or was changed."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("reading a map", "transformers") from error
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header: dict[str, str] = file.metadata() or {}
            _check_header(path, header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; write one with kvferry handoff fit") from None
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a map: {error}") from error
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


def _check_header(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise FormatError(f"{path}: a safetensors file, but no map; write one with kvferry handoff fit")
    if header.get("version") != str(FORMAT_VERSION):
        raise FormatError(
            f"{path}: map format {header.get('version')}, this kvferry reads {FORMAT_VERSION}: fit it again"
        )


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
