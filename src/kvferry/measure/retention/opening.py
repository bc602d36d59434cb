"""Which map a file holds, opened as what everything here measures.

Owns the way from a safetensors header to a `KvMap`, and the closed-form map in that form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ...errors import FormatError, ModelError
from ...handoff.mapping.container import FORMAT
from ...handoff.mapping.contract import Context, KvMap
from ...handoff.mapping.file import load_map
from ...handoff.mapping.mapper import Mapper
from ...handoff.mapping.namespace import check_models
from ...handoff.mapping.shapes import ModelKv, Prefill

__all__ = ["ClosedForm", "calibrated_positions", "check_map_file", "open_map"]


class ClosedForm:
    """A closed-form map, token by token, as a `KvMap`; `dtype` is the target cache's."""

    def __init__(self, mapper: Mapper, dtype: torch.dtype) -> None:
        self.mapper, self.dtype = mapper, dtype
        facts = mapper.facts
        kind = "" if facts is None else f" ({facts.inputs} inputs, {facts.source_layers} layers)"
        self.name = f"closed form{kind}"
        self.trained_tokens = 0 if facts is None else facts.rows
        self.positions = None if facts is None else facts.positions

    def carry(self, context: Context, source: Prefill, positions: torch.Tensor) -> Prefill:
        """Raises ModelError where the two models do not cut the text into the same tokens."""
        if context.source_ids != context.target_ids:
            raise ModelError(
                "a closed-form map carries token by token, and source and target cut this text into "
                f"different tokens: {context.text[:60]!r}"
            )
        return self.mapper.apply(source, positions=positions, dtype=self.dtype)


def check_map_file(path: Path) -> None:
    """Raises `FormatError` where the header is no map's: cheap, to be asked before models are opened."""
    _header(path)


def open_map(
    path: Path, source: ModelKv, target: ModelKv, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> KvMap:
    """The map of a file, closed-form or learned, for these two models.

    Raises `FormatError` where it is no map, or was made for other models.
    """
    if _header(path).get("kind") == "cross":
        from ...handoff.crossing.file import open_cross_map

        learned = open_cross_map(path, device=device, dtype=dtype)
        check_models(learned.network.shape.source, source, "source")
        check_models(learned.network.shape.target, target, "target")
        return learned
    mapper = load_map(path, device=device)
    check_models(mapper.outline.source, source, "source")
    check_models(mapper.outline.target, target, "target")
    return ClosedForm(mapper, dtype)


def calibrated_positions(map_: KvMap) -> int | None:
    """Positions 0 to this one less one are what the map has seen; None where it does not say."""
    found = getattr(map_, "positions", None)
    return found if isinstance(found, int) else None


def _header(path: Path) -> dict[str, Any]:
    """The metadata of a safetensors file: a length of 8 bytes, then JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > 100 << 20:
                raise FormatError(f"--map {path}: not a map; write one with kvferry handoff fit")
            fields = json.loads(file.read(length))
    except FileNotFoundError:
        raise FormatError(f"--map {path}: no such file; write one with kvferry handoff fit") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"--map {path}: not a map: {error}; write one with kvferry handoff fit") from error
    metadata = fields.get("__metadata__") if isinstance(fields, dict) else None
    if not isinstance(metadata, dict):
        raise FormatError(
            f"--map {path}: a safetensors file, but no map ({FORMAT}); write one with kvferry handoff fit"
        )
    return metadata
