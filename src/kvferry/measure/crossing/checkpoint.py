"""A training's state in a file, so that a killed one goes on where it was.

Owns the file: written beside its place and renamed into it. A checkpoint of other settings is refused, with
the name of what differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import FormatError

__all__ = ["read_checkpoint", "write_checkpoint"]


def write_checkpoint(path: Path, settings: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Replace the checkpoint by this one, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"settings": dict(settings), "state": dict(state)}, file)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state, or None where there is no checkpoint. Raises FormatError for one of another training."""
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        theirs, state = found["settings"], found["state"]
    except Exception as error:  # torch raises many unrelated types; each means "not a checkpoint"
        raise FormatError(f"{path}: not a checkpoint of kvferry handoff train: {error}") from error
    for name in sorted({*settings, *theirs}):
        if settings.get(name) != theirs.get(name):
            raise FormatError(
                f"{path}: a checkpoint with {name} {theirs.get(name)!r}, not {settings.get(name)!r}: "
                "train with that, or remove the file"
            )
    kept: dict[str, Any] = state
    return kept
