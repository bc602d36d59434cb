"""YAML and JSON documents as a flat list of (path, raw value, where it stands).

Owns the reading of both, strictly: a YAML scalar is a bool only as `true` or `false` (so that `mode: off`
is a word), a key stands once, and tags, merges and further documents are refused. Lines are counted from 1.
It refuses to know which paths exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..errors import ConfigError

__all__ = ["read_json", "read_yaml"]

_JSON_NAME = "kv_connector_extra_config"
_DEEPEST = 4


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core scalars: the words yes, no, on and off, and 12:30, stay text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own)


for _tag, _pattern, _first in (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


def read_yaml(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Every leaf of a YAML file, with "file:line". An empty file has none. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this file of settings: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and _scalar(root, str(path)) is None):
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: settings are a mapping; write NAME: VALUE")
    yield from _leaves(root, "", path, 0)


def _leaves(node: yaml.MappingNode, prefix: str, path: Path, depth: int) -> Iterator[tuple[str, Any, str]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        where = f"{path}:{line}"
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise ConfigError(f"{where}: a setting's name is a word; write NAME: VALUE")
        name = f"{prefix}.{key.value}" if prefix else key.value
        if name in seen:
            raise ConfigError(f"{where}: {name!r} stands twice, first in line {seen[name]}; keep one")
        seen[name] = line
        if isinstance(value, yaml.MappingNode):
            if depth >= _DEEPEST:
                raise ConfigError(f"{where}: {name!r} is nested too deep")
            yield from _leaves(value, name, path, depth + 1)
        elif isinstance(value, yaml.SequenceNode):
            yield name, [_scalar(item, where) for item in value.value], where
        else:
            yield name, _scalar(value, where), where


def _scalar(node: yaml.Node, where: str) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{where}: a list holds single values only")
    text = node.value
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool":
            return text == "true"
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "str":
            return text
    raise ConfigError(f"{where}: the tag {node.tag!r} has no meaning in settings; write a plain value")


def read_json(document: Mapping[str, Any] | str | bytes) -> Iterator[tuple[str, Any, str]]:
    """Every leaf of vLLM's kv_connector_extra_config, decoded or as text. Raises `ConfigError`."""
    if isinstance(document, str | bytes):
        try:
            document = msgspec.json.decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{_JSON_NAME}: not JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise ConfigError(f'{_JSON_NAME}: settings are an object; write {{"NAME": VALUE}}')
    yield from _members(document, "", 0)


def _members(document: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any, str]]:
    for key, value in document.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        where = f"{_JSON_NAME}.{name}"
        if isinstance(value, Mapping):
            if depth >= _DEEPEST:
                raise ConfigError(f"{where}: nested too deep")
            yield from _members(value, name, depth + 1)
        else:
            yield name, value, where
