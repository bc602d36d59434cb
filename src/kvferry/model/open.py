"""From what the user wrote to a model: a config.json, its folder, a GGUF file, or the name of a preset.

Owns that choice. Presets are data files beside this module: a config as published, and the number of weights
that compute a token (`kvferry_active_parameters`), which no config says.
"""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from ..errors import ModelError
from .config import parse_config
from .gguf import MAGIC
from .gguf_config import from_gguf
from .layers import Model

__all__ = ["open_model", "preset_names", "read_preset"]


def preset_names() -> list[str]:
    """The bundled presets, sorted."""
    found = (file.name for file in files("kvferry.model.presets").iterdir())
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def read_preset(name: str, *, assume_dense: bool = False) -> Model:
    """The model of a bundled preset. Raises `ModelError` where there is none of that name."""
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ModelError(
            f"no model {name!r}: give a config.json, a folder with one, a GGUF file or a preset; {hint}"
        )
    text = files("kvferry.model.presets").joinpath(f"{name}.json").read_bytes()
    return parse_config(text, f"preset {name}", assume_dense=assume_dense)


def open_model(name: str, *, assume_dense: bool = False) -> Model:
    """The model that `name` stands for. Raises `ModelError` with what to give instead."""
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ModelError(f"{path.parent}: has no config.json")
    if not path.is_file():
        return read_preset(name.lower(), assume_dense=assume_dense)
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == MAGIC
            if not is_gguf:
                file.seek(0)
                text = file.read()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if is_gguf:
        return from_gguf(path, assume_dense=assume_dense)
    return parse_config(text, str(path), assume_dense=assume_dense)
