"""A fit that was killed goes on: what it had collected, in a file beside its result.

Owns the file and whose it is. It is a safetensors file, written beside its place and renamed into it, so
that there is always a whole one; its header holds the settings of the fit that wrote it, and a fit of other
settings is told which they are and begins nothing. What is collected, the parts of a fit know themselves:
they give tensors by name and take them again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...errors import FormatError, MissingExtra, UsageError

__all__ = ["CHECKPOINT_FORMAT", "Checkpoint", "Kept", "named", "under"]

CHECKPOINT_FORMAT = "kvferry-fit"
_VERSION = "1"

Kept = dict[str, torch.Tensor]
"""Tensors by name; names are parts divided by dots."""


def named(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Kept:
    """The same under a longer name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Kept:
    """Those of one name, by the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): one for name, one in tensors.items() if name.startswith(start)}


class Checkpoint:
    """The file of one fit, written at most every `seconds`.

    `settings` are all that decide the fit's result, by the names that a user knows.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, str],
        *,
        seconds: float = 120.0,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.settings, self.seconds, self.device = path, dict(settings), seconds, device
        self._clock = clock
        self._last = clock()

    @property
    def due(self) -> bool:
        """Whether the interval has passed since one was written."""
        return self._clock() - self._last >= self.seconds

    def write(self, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the file."""
        try:
            from safetensors.torch import save_file
        except ImportError as error:
            raise MissingExtra("keeping a fit's checkpoint", "transformers") from error
        header = {
            "format": CHECKPOINT_FORMAT,
            "version": _VERSION,
            "settings": msgspec.json.encode(self.settings).decode(),
            "facts": msgspec.json.encode(facts).decode(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        os.close(handle)
        try:
            # Sums that start at one origin share it, and slices share their whole: a file wants each apart.
            apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(apart, beside, metadata=header)
            os.replace(beside, self.path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
        self._last = self._clock()

    def read(self) -> tuple[dict[str, Any], Kept] | None:
        """What was collected; None where there is no file.

        Raises `UsageError`, naming what differs, where it is another fit's, `FormatError` where it is no
        checkpoint.
        """
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise MissingExtra("reading a fit's checkpoint", "transformers") from error
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt", device=self.device) as file:
                header: dict[str, str] = file.metadata() or {}
                if (header.get("format"), header.get("version")) != (CHECKPOINT_FORMAT, _VERSION):
                    raise FormatError(
                        f"{self.path}: not a fit's checkpoint of this version: remove it, {_ANEW}"
                    )
                self._check(msgspec.json.decode(header["settings"], type=dict[str, str]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            facts: dict[str, Any] = msgspec.json.decode(header["facts"])
        except (SafetensorError, OSError, KeyError, msgspec.DecodeError) as error:
            raise FormatError(f"{self.path}: not a fit's checkpoint: {error}: remove it, {_ANEW}") from error
        return facts, tensors

    def remove(self) -> None:
        """The fit is done, or begins anew."""
        self.path.unlink(missing_ok=True)

    def _check(self, found: Mapping[str, str]) -> None:
        differ = [
            f"{name} is {found.get(name, 'not set')} there and {self.settings.get(name, 'not set')} here"
            for name in sorted({*found, *self.settings})
            if found.get(name) != self.settings.get(name)
        ]
        if differ:
            raise UsageError(
                f"{self.path} is of another fit: {'; '.join(differ)}. Give its settings, {_ANEW}"
            )


_ANEW = "or begin anew with --fresh"
