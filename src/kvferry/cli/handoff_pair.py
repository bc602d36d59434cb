"""The two models of `kvferry handoff fit`, `apply`, `train` and `agents`, and the file that is made of them.

Owns opening the pair, and refusing a path before an hour of work is written to it. Knows no map.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..engines.transformers.capture import Captured

__all__ = ["check_new_file", "open_pair", "say"]


def check_new_file(option: str, path: Path) -> None:
    """Raise UsageError where no file can be written at `path`; one that is there is replaced."""
    if path.is_dir():
        raise UsageError(f"{option} {path}: a folder; write the name of a file in it")
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir():
        raise UsageError(f"{option} {path}: {above} is no folder")


def open_pair(
    source: str, target: str, *, dtype: str, device: str, threads: int | None
) -> tuple[Captured, Captured]:
    """Both models, their keys understood. Raises ModelError."""
    from ..config import cache_dir
    from ..engines.transformers.capture import open_captured
    from ..engines.transformers.resolve import model_name, resolve_model

    found = []
    for name in (source, target):
        folder = resolve_model(name, cache_dir(), say=say)
        model = open_captured(folder, name=model_name(name), dtype=dtype, device=device, threads=threads)
        say(f"{model.kv.name}: stripped keys are the model's own to {model.check_strip():.1g}")
        found.append(model)
    return found[0], found[1]


def say(text: str) -> None:
    """A line of progress: never on standard output, which is the result's."""
    print(text, file=sys.stderr, flush=True)
