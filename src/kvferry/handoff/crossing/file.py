"""A cross-family map as a safetensors file: the network's numbers, everything else as JSON in its header.

Owns the format: that of closed-form maps with `kind` "cross". Written beside its place and renamed into it;
the digest is checked on reading.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import torch

from ...errors import FormatError, MissingExtra
from ..mapping.file import FORMAT
from .crossmap import CrossFacts, CrossMap
from .network import CrossNetwork, CrossShape

__all__ = ["CROSS_KIND", "CROSS_VERSION", "open_cross_map", "save_cross_map"]

CROSS_KIND = "cross"
CROSS_VERSION = 1


def save_cross_map(made: CrossMap, path: Path) -> int:
    """Write the map; its size in bytes."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("writing a map", "transformers") from error
    header = {
        "format": FORMAT,
        "kind": CROSS_KIND,
        "version": str(CROSS_VERSION),
        "digest": made.digest(),
        "shape": msgspec.json.encode(made.network.shape).decode(),
        "facts": "" if made.facts is None else msgspec.json.encode(made.facts).decode(),
    }
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in made.network.numbers().items()
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


def open_cross_map(path: Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> CrossMap:
    """Read a map. Raises FormatError where it is none, is of another kind or version, or was changed."""
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
        raise FormatError(f"{path}: no such file; write one with kvferry handoff train") from None
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a map: {error}") from error
    try:
        shape = msgspec.json.decode(header["shape"], type=CrossShape)
        facts = msgspec.json.decode(header["facts"], type=CrossFacts) if header.get("facts") else None
        network = CrossNetwork(shape)
        network.load_state_dict(tensors)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, RuntimeError) as error:
        raise FormatError(f"{path}: its header does not describe its numbers: {error}") from error
    made = CrossMap(network.to(device), facts, dtype=dtype)
    if made.digest() != header.get("digest"):
        raise FormatError(
            f"{path}: its digest is not that of its numbers; the map is not used: train it again"
        )
    return made


def _check_header(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise FormatError(f"{path}: a safetensors file, but no map; write one with kvferry handoff train")
    kind = header.get("kind", "closed form")
    if kind != CROSS_KIND:
        raise FormatError(f"{path}: a map of kind {kind!r}, not one across families")
    if header.get("version") != str(CROSS_VERSION):
        raise FormatError(
            f"{path}: cross map format {header.get('version')}, this kvferry reads {CROSS_VERSION}: "
            "train it again"
        )
