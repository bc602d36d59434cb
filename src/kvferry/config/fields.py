"""From the schema's annotations to fields, and from one raw value to a checked one.

Owns how a setting is read: units, choices, bounds, and what to write instead when it is wrong. Two kinds of
raw value exist: text (environment, flags), where everything has to be parsed, and typed values (YAML, JSON,
code). A value either is right or raises `ConfigError`; nothing is coerced on the way except an int where a
float is asked for. It refuses to know where the value came from: callers pass a name for the message.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import inspect

from ..errors import ConfigError
from ..units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_tokens,
)

__all__ = ["Field", "check_struct", "fields_of", "read_text", "read_value", "show_value"]

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMPARE: Mapping[str, Callable[[Any, float], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "min_length": operator.ge,
}
_EXAMPLES = {"bytes": "16GiB", "seconds": "5ms", "rate": "8GiB/s", "tokens": "4096"}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    path: str
    """"gate.margin"; what files, flags and messages call it."""
    kind: str
    """bytes, seconds, rate, tokens, int, float, bool, text, texts, choice or group."""
    default: Any
    doc: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    bounds: Mapping[str, float] = msgspec.field(default_factory=dict)
    secret: bool = False
    check: Callable[[Any, str], None] | None = None
    """What else has to hold; raises `ConfigError` for (value, name)."""


@cache
def fields_of(struct: type[msgspec.Struct], prefix: str = "") -> dict[str, Field]:
    """The fields of a settings struct by path, groups included, in the order of the page."""
    found: dict[str, Field] = {}
    described = inspect.type_info(struct)
    if not isinstance(described, inspect.StructType):
        raise TypeError(f"{struct!r} is not a struct")
    hints = get_type_hints(struct)
    for field in described.fields:
        path = f"{prefix}.{field.name}" if prefix else field.name
        default = field.default
        if default is msgspec.NODEFAULT:
            default = None if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        made, group = _field(path, field.type, hints[field.name], default)
        found[path] = made
        if group is not None:
            found |= fields_of(group, path)
    return found


def _field(
    path: str, kind: inspect.Type, hint: Any, default: Any
) -> tuple[Field, type[msgspec.Struct] | None]:
    doc = ""
    extra: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata):
        doc = (kind.extra_json_schema or {}).get("description", doc)
        extra |= kind.extra or {}
        kind = kind.type
    optional = False
    if isinstance(kind, inspect.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
        optional = True
    bounds = {sign: limit for sign in _COMPARE if (limit := getattr(kind, sign, None)) is not None}
    if isinstance(kind, inspect.StructType):
        return Field(path=path, kind="group", default=default, doc=doc), kind.cls
    field = Field(
        path=path,
        kind=extra.get("unit") or _kind(path, kind),
        default=default,
        doc=doc,
        optional=optional,
        # From the hint, since msgspec sorts them and the page has them in a telling order.
        choices=get_args(hint) if isinstance(kind, inspect.LiteralType) else (),
        bounds=bounds,
        secret=extra.get("secret", False),
        check=extra.get("check"),
    )
    return field, None


def _kind(path: str, kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "bool"
        case inspect.IntType():
            return "int"
        case inspect.FloatType():
            return "float"
        case inspect.StrType():
            return "text"
        case inspect.LiteralType():
            return "choice"
        case inspect.VarTupleType(item_type=inspect.StrType()):
            return "texts"
    raise TypeError(f"{path}: the schema has no way to read {kind!r}")


def read_text(field: Field, text: str, name: str) -> Any:
    """The value that a variable or a flag spells. `null` unsets, `a,b` is a list. Raises `ConfigError`."""
    if not text and field.kind != "texts":
        raise ConfigError(f"{name} is empty; {_what(field)}")
    if field.optional and text == "null":
        return None
    raw: Any = text
    if field.kind == "bool" and text in ("true", "false"):
        raw = text == "true"
    elif field.kind == "int" and _INTEGER.fullmatch(text):
        raw = int(text)
    elif field.kind == "float" and _NUMBER.fullmatch(text):
        raw = float(text)
    elif field.kind == "texts":
        raw = [part.strip() for part in text.split(",")] if text else []
    return _read(field, raw, name)


def read_value(field: Field, raw: Any, name: str) -> Any:
    """The value that YAML or JSON holds. Raises `ConfigError`.

    A bare number where a unit is needed is refused, since a file does not say the unit by the name as code
    does. Zero is zero in every unit.
    """
    if field.kind in ("bytes", "seconds", "rate") and _is_number(raw) and raw != 0:
        raise ConfigError(f"{name}: {raw!r} has no unit; {_what(field)}")
    return _read(field, raw, name)


def check_struct(settings: msgspec.Struct, prefix: str) -> None:
    """Hold a struct made in code to the same rules. Raises `ConfigError`."""
    for field in fields_of(type(settings), prefix).values():
        owner, _, attribute = field.path.rpartition(".")
        if owner != prefix:
            continue
        value = getattr(settings, attribute)
        if field.kind == "group":
            if type(value) is not type(field.default):
                raise ConfigError(f"{field.path}: {value!r} is not {type(field.default).__name__}")
            continue
        if _read(field, value, field.path) != value:
            raise ConfigError(f"{field.path}: {_shown(field, value)} is not a value; {_what(field)}")


def show_value(field: Field, value: Any) -> str:
    """A value as a file would spell it; secrets are the caller's to hide."""
    if value is None:
        return "null"
    match field.kind:
        case "bytes":
            return format_bytes(value, exact=True)
        case "seconds":
            return format_seconds(value, exact=True)
        case "rate":
            return format_rate(value)
        case "bool":
            return "true" if value else "false"
        case "texts":
            return ",".join(value)
    return str(value)


def _read(field: Field, raw: Any, name: str) -> Any:
    if raw is None:
        if field.optional:
            return None
        raise ConfigError(f"{name} is empty; {_what(field)}")
    value: Any
    match field.kind:
        case "bytes":
            value = parse_bytes(raw, name)
        case "seconds":
            value = parse_seconds(raw, name)
        case "rate":
            value = float(raw) if _is_number(raw) else parse_rate(raw, name)
        case "tokens":
            value = parse_tokens(raw, name)
        case "bool" if isinstance(raw, bool):
            value = raw
        case "int" if isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        case "float" if _is_number(raw) and math.isfinite(raw):
            value = float(raw)
        case "text" if isinstance(raw, str):
            value = raw
        case "choice" if isinstance(raw, str) and raw in field.choices:
            value = raw
        case "texts" if isinstance(raw, list | tuple) and all(isinstance(part, str) and part for part in raw):
            value = tuple(raw)
        case _:
            raise ConfigError(f"{name}: {_shown(field, raw)} is not a value; {_what(field)}")
    _check_bounds(field, value, name)
    return value


def _check_bounds(field: Field, value: Any, name: str) -> None:
    for sign, limit in field.bounds.items():
        measured = len(value) if sign == "min_length" else value
        if not _COMPARE[sign](measured, limit):
            raise ConfigError(f"{name}: {_shown(field, value)} is out of bounds; {_what(field)}")
    if field.check is not None:
        field.check(value, name)


def _what(field: Field) -> str:
    """What to write instead."""
    match field.kind:
        case "bool":
            text = "write true or false"
        case "choice":
            text = f"write one of {', '.join(field.choices)}"
        case "texts":
            text = "write a list of names"
        case "text":
            text = "write some text"
        case "int":
            text = f"write a whole number{_range(field)}"
        case "float":
            text = f"write a number{_range(field)}"
        case unit:
            text = f"write an amount such as {_EXAMPLES[unit]}{_range(field)}"
    return f"{text}, or null for none" if field.optional else text


def _range(field: Field) -> str:
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    parts = []
    for sign, limit in field.bounds.items():
        if field.kind in ("bytes", "seconds") and limit == 0 and sign == "ge":
            continue
        parts.append(f"{words[sign]} {limit:g}")
    return f", {' and '.join(parts)}" if parts else ""


def _shown(field: Field, value: Any) -> str:
    return "the value given" if field.secret else repr(value)


def _is_number(raw: object) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool)
