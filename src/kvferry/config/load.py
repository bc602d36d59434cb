"""Settings from five sources, merged, checked, and each value's origin remembered.

Weakest to strongest: defaults, the YAML file, the environment, vLLM's kv_connector_extra_config, flags.
A stronger source replaces single values, never whole groups. An unknown key in any source is an error that
names the nearest known one; so is a value that cannot be read, even where a stronger source would replace
it. Owns the merging; what the settings are is the schema's.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ..errors import ConfigError
from .documents import read_json, read_yaml
from .fields import Field, fields_of, read_text, read_value
from .origins import DEFAULT, Origin
from .places import FILE_VARIABLE, OTHER_VARIABLES, PREFIX
from .schema import Config

__all__ = ["Loaded", "load"]


class Loaded(msgspec.Struct, frozen=True):
    """The settings, and the origin of each by its path ("gate.margin")."""

    config: Config
    origins: Mapping[str, Origin]


def load(
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    json: Mapping[str, Any] | str | bytes | None = None,
) -> Loaded:
    """Read the settings.

    `file` is a YAML file; without one, KVFERRY_CONFIG may name it. `env` is the environment (None: the
    process's; {}: none). `overrides` are the texts of `--set`, each "gate.margin=5ms". `json` is vLLM's
    kv_connector_extra_config, as text or decoded. Raises `ConfigError`.
    """
    environment = os.environ if env is None else env
    fields = fields_of(Config)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {path: DEFAULT for path, field in fields.items() if field.kind != "group"}

    def put(path: str, value: Any, origin: Origin) -> None:
        values[path] = value
        origins[path] = origin

    if file is None:
        file = environment.get(FILE_VARIABLE) or None
    if file is not None:
        for path, raw, where in read_yaml(Path(file)):
            if raw is None and path in fields and fields[path].kind == "group":
                continue  # a group whose lines are all commented out
            origin = Origin("file", where)
            put(path, read_value(_leaf(fields, path, where), raw, f"{path} ({origin})"), origin)
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            origin = Origin("env", variable)
            field = _variable(fields, variable)
            put(field.path, read_text(field, environment[variable], f"{field.path} ({origin})"), origin)
    if json is not None:
        for path, raw, where in read_json(json):
            origin = Origin("json", where)
            put(path, read_value(_leaf(fields, path, where), raw, f"{path} ({origin})"), origin)
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path:
            raise ConfigError(f"--set {override!r} sets nothing; write NAME=VALUE, as in gate.margin=5ms")
        origin = Origin("flag", f"--set {path}")
        put(path, read_text(_leaf(fields, path, "--set"), text, f"{path} ({origin})"), origin)
    return Loaded(_build(fields, values), MappingProxyType(origins))


def _build(fields: Mapping[str, Field], values: Mapping[str, Any]) -> Config:
    config = Config()
    for path, field in fields.items():
        if field.kind == "group":
            inside = {
                name.removeprefix(f"{path}."): value
                for name, value in values.items()
                if name.startswith(f"{path}.")
            }
            config = msgspec.structs.replace(
                config, **{path: msgspec.structs.replace(getattr(config, path), **inside)}
            )
    return msgspec.structs.replace(
        config, **{name: value for name, value in values.items() if "." not in name}
    )


def _leaf(fields: Mapping[str, Field], path: str, where: str) -> Field:
    field = fields.get(path)
    if field is None:
        raise ConfigError(f"{where}: unknown setting {path!r}{_nearest(path, fields)}")
    if field.kind == "group":
        raise ConfigError(f"{where}: {path!r} is a group of settings, such as {_inside(fields, path)}")
    return field


def _variable(fields: Mapping[str, Field], variable: str) -> Field:
    by_variable = {_spell(path): field for path, field in fields.items()}
    field = by_variable.get(variable)
    if field is None:
        nearest = _nearest(variable, (*by_variable, *OTHER_VARIABLES))
        raise ConfigError(f"environment: unknown variable {variable!r}{nearest}")
    if field.kind == "group":
        raise ConfigError(
            f"environment: {variable!r} is a group of settings, such as {_spell(_inside(fields, field.path))}"
        )
    return field


def _spell(path: str) -> str:
    return PREFIX + path.upper().replace(".", "__")


def _inside(fields: Mapping[str, Field], group: str) -> str:
    return next(path for path in fields if path.startswith(f"{group}."))


def _nearest(name: str, known: Iterable[str]) -> str:
    """What to try instead, found by spelling, or by a last part that stands elsewhere ("margin")."""
    names = list(known)
    homes = [path for path in names if path.endswith(f".{name.rpartition('.')[2]}")]
    close = homes[:1] or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else "; `kvferry config show` lists all settings"
