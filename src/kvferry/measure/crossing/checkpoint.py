"""A training's state in a file, so that a killed one goes on where it was.

Owns the file and when it is due: written beside its place and renamed into it. A checkpoint of other settings
is refused, with the name of what differs. What a state is, the stages of a training know themselves.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import FormatError

__all__ = ["Checkpoint"]


class Checkpoint:
    """The file of one training, offered states and written at most every `seconds`; None: there is none.

    `settings` are all that decide the training's result.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, seconds: float) -> None:
        self._path, self._settings, self._seconds = path, dict(settings), seconds
        self._last = time.monotonic()

    def offer(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write what `state` gives where the interval has passed."""
        if self._path is not None and time.monotonic() - self._last >= self._seconds:
            self.write(state())

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint by this one, whole or not at all."""
        if (path := self._path) is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save({"settings": self._settings, "state": dict(state)}, file)
            os.replace(beside, path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
        self._last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The state, or None where there is no checkpoint. Raises FormatError for one of another training."""
        path, settings = self._path, self._settings
        if path is None or not path.exists():
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
