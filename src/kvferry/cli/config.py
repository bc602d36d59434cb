"""`kvferry config`: the settings as this process would see them, each with its origin."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from ..config import Config, load, public_values
from ..config.fields import Field, fields_of, show_value
from .output import Json, write_columns, write_json

__all__ = ["app"]

app = App(name="config", help="The settings, each with its origin.")

_PLAIN = re.compile(r"[A-Za-z/][\w./:@+-]*", re.ASCII)
# Ours are true, false and null; other readers of YAML take the rest for booleans too.
_WORDS_WITH_A_MEANING = {"true", "false", "null", "on", "off", "yes", "no", "y", "n"}


@app.command
def show(
    *,
    file: Annotated[str | None, Parameter(name=["--file", "--config"])] = None,
    set_: Annotated[list[str] | None, Parameter(name="--set")] = None,
    json: Json = False,
) -> None:
    """Print every setting, its origin and what it does, as YAML that can be saved and changed.

    Secrets and passwords are shown as ***.

    Parameters
    ----------
    file
        A YAML file of settings; without it, KVFERRY_CONFIG may name one.
    set_
        NAME=VALUE, as in gate.margin=5ms; stronger than file and environment; may be given again.
    """
    loaded = load(file=file, overrides=set_ or ())
    fields = fields_of(Config)
    values = public_values(loaded.config)
    if json:
        write_json(
            {
                path: {
                    "value": value,
                    "shown": show_value(fields[path], value),
                    "origin": msgspec.to_builtins(loaded.origins[path]),
                    "default": fields[path].default,
                    "doc": fields[path].doc,
                }
                for path, value in values.items()
            }
        )
        return
    rows = []
    for path, field in fields.items():
        depth = path.count(".")
        name = "  " * depth + path.rpartition(".")[2]
        if field.kind == "group":
            rows.append((f"{name}:", "", f"# {field.doc}"))
        else:
            text = f"{name}: {_yaml(field, values[path])}"
            rows.append((text, f"# {loaded.origins[path]}", f"# {field.doc}"))
    write_columns(rows)


def _yaml(field: Field, value: Any) -> str:
    """One value as YAML reads it back."""
    if field.kind == "texts":
        return f"[{', '.join(_quoted(part) for part in value)}]"
    text = show_value(field, value)
    return _quoted(text) if field.kind in ("text", "choice") and value is not None else text


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_WITH_A_MEANING and not text.endswith(":"):
        return text
    escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'
