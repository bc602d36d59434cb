"""The safetensors file that a map of any kind lies in: its numbers, and all else as JSON in its header.

Owns what all kinds share. The file is written beside its place and renamed into it, so that half a map is
never seen; what is no map, or a map of another kind or version, is refused with the command that makes one.
Knows nothing of what a kind's numbers mean.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...errors import FormatError, MissingExtra

__all__ = ["FORMAT", "MapKind", "read_container", "write_container"]

FORMAT = "kvferry-map"


@dataclass(frozen=True, slots=True)
class MapKind:
    """One kind of map: what its header says, and what to do where a file does not hold it."""

    name: str
    version: int
    command: str
    """That makes one."""
    again: str
    """What to do with a file of another version, or one that was changed."""


_UNSAID = "closed form"
"""The kind of a file that names none: the first kind came before there were several."""


def write_container(
    path: Path, kind: MapKind, tensors: Mapping[str, torch.Tensor], fields: Mapping[str, str]
) -> int:
    """Write a map with these header fields; its size in bytes."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("writing a map", "transformers") from error
    header = {"format": FORMAT, "version": str(kind.version), **fields}
    if kind.name != _UNSAID:
        header["kind"] = kind.name
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        save_file(dict(tensors), beside, metadata=header)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path.stat().st_size


def read_container(
    path: Path, kind: MapKind, *, device: str = "cpu"
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Header and numbers of a map of this kind. Raises `FormatError` where the file holds none."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("reading a map", "transformers") from error
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header: dict[str, str] = file.metadata() or {}
            _check(path, kind, header)
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; write one with {kind.command}") from None
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a map: {error}") from error


def _check(path: Path, kind: MapKind, header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise FormatError(f"{path}: a safetensors file, but no map; write one with {kind.command}")
    found = header.get("kind", _UNSAID)
    if found != kind.name:
        raise FormatError(
            f"{path}: a map of kind {found!r}, not {kind.name!r}; write one with {kind.command}"
        )
    if header.get("version") != str(kind.version):
        raise FormatError(
            f"{path}: {kind.name} map format {header.get('version')}, this kvferry reads {kind.version}: "
            f"{kind.again}"
        )
