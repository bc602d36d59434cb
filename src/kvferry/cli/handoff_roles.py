"""What `kvferry handoff send` and `receive` share: checks before a model is read, the model, and names."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import Loaded, cache_dir, load
from ..errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from ..engines.transformers.runner import Runner

__all__ = ["begin", "numbered", "open_runner", "say_json"]


def begin(config: Path | None, overrides: tuple[str, ...], threads: int, exit_with_parent: bool) -> Loaded:
    """What both roles check before a model is read for seconds."""
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise MissingExtra("kvferry handoff", "transformers")
    if threads < 1:
        raise UsageError(f"--threads {threads}: write 1 or more")
    if exit_with_parent:
        Thread(target=_end_with_parent, name="kvferry-parent", daemon=True).start()
    return load(file=config, overrides=overrides)


def open_runner(loaded: Loaded, model: str, dtype: str, threads: int) -> Runner:
    """The model of a role. Raises ModelError."""
    from ..engines.transformers.resolve import model_name, resolve_model
    from ..engines.transformers.runner import Runner

    folder = resolve_model(model, cache_dir(), say=lambda text: print(text, file=sys.stderr, flush=True))
    return Runner(
        folder,
        name=model_name(model),
        block_tokens=loaded.config.block_tokens,
        dtype=dtype,
        threads=threads,
        revision=loaded.config.revision,
    )


def numbered(base: str, number: int, count: int) -> str:
    """The id of one of several hand-offs."""
    return base if count == 1 else f"{base}-{number + 1}"


def say_json(line: dict[str, Any]) -> None:
    """One line for a machine, at once."""
    print(msgspec.json.encode(line).decode(), flush=True)


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by this thread, would break the interpreter's way out.
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
