"""A cross-family map as a file: the network's numbers, everything else in the header.

Owns which numbers and fields there are; the digest is checked on reading. How a map of any kind lies on a
disk is `mapping/container.py`'s.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from ...errors import FormatError
from ..mapping.container import MapKind, read_container, write_container
from .crossmap import CrossFacts, CrossMap
from .network import CrossNetwork, CrossShape

__all__ = ["CROSS", "open_cross_map", "save_cross_map"]

CROSS = MapKind("cross", 1, "kvferry handoff train", "train it again")


def save_cross_map(made: CrossMap, path: Path) -> int:
    """Write the map; its size in bytes."""
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in made.network.numbers().items()
    }
    fields = {
        "digest": made.digest(),
        "shape": msgspec.json.encode(made.network.shape).decode(),
        "facts": "" if made.facts is None else msgspec.json.encode(made.facts).decode(),
    }
    return write_container(path, CROSS, tensors, fields)


def open_cross_map(path: Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> CrossMap:
    """Read a map. Raises FormatError where it is none, is of another kind or version, or was changed."""
    header, tensors = read_container(path, CROSS, device=device)
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
