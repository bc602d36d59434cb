"""Rows of a message log as prompts: JSON lines with `messages` and `tools`, or with a `prompt`.

Owns what a row may look like and the neutral form of a prompt where no chat template is given: leading system
messages, then the tools, then the other messages, each behind its role. Fields that it does not know are left
alone. A row it cannot use is booked as a problem with its line. Opens no file, and knows no causes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from ...traces.chunk import Problems
from .prompt import Kind, Piece, Prompt

__all__ = ["Render", "fields_of", "prompts_of"]

Render: TypeAlias = Callable[[list[dict[str, Any]], "list[Any] | None", Mapping[str, Any]], str]
"""(messages with texts as contents, tools or None, the whole row) to the text that the engine would see.
Raises ValueError where the template refuses them."""

_SERVICE = ("service", "service_name", "app", "application")
_APART = ("model", "lora", "adapter", "cache_salt")
_SETUP = ("tokenizer", "chat_template", "template", "template_version")
_SYSTEM = ("system", "developer")
_TEXTS = ("prompt", "input", "instructions")


def prompts_of(
    lines: Iterable[bytes],
    problems: Problems,
    *,
    path: str,
    by: str | None = None,
    render: Render | None = None,
) -> Iterator[Prompt]:
    """The prompts of a log, in its order.

    `by` is the field that names a row's service, dotted for one inside another (`metadata.team`); without it
    the first of service, service_name, app and application that a row has. Bad rows go to `problems`, which
    raises FormatError at the first if strict.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
            prompt = _prompt(row, number, by, render)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.add(path, number, f"not JSON: {error}")
        except _BadRow as error:
            problems.add(path, number, str(error))
        else:
            yield prompt


def fields_of(lines: Iterable[bytes]) -> list[str]:
    """Fields of these rows that could name a service: those whose value is a text or a whole number."""
    found: dict[str, None] = {}
    for line in lines:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if not isinstance(row, dict):
            continue
        body = _body(row)
        for place in (row, body, row.get("metadata"), body.get("metadata")):
            if isinstance(place, dict):
                found |= {
                    name: None
                    for name, value in place.items()
                    if isinstance(value, str | int) and not isinstance(value, bool)
                }
    return [name for name in found if name not in _TEXTS]


class _BadRow(Exception):
    """What is wrong with one row; never leaves this module."""


def _prompt(row: Any, number: int, by: str | None, render: Render | None) -> Prompt:
    if not isinstance(row, dict):
        raise _BadRow(f"a row is an object, not {_kind(row)}")
    body = _body(row)
    text, pieces = _read(body, row, render)
    if not text:
        raise _BadRow("the prompt is empty")
    apart = [str(body[name]) for name in _APART if body.get(name)]
    known = {**row, **body}
    setup = tuple((name, _digest(known[name])) for name in _SETUP if known.get(name))
    return Prompt(number, text, pieces, model="\n".join(apart), setup=setup, service=_service(row, body, by))


def _body(row: dict[str, Any]) -> dict[str, Any]:
    """The request itself, which a log may wrap with its response or as an entry of a batch."""
    for _ in range(2):
        inner = next((row[name] for name in ("request", "body") if isinstance(row.get(name), dict)), None)
        if inner is None or "messages" in row or "prompt" in row:
            break
        row = inner
    return row


def _service(row: dict[str, Any], body: dict[str, Any], by: str | None) -> str | None:
    for name in (by,) if by else _SERVICE:
        for place in (row, body, row.get("metadata"), body.get("metadata")):
            value: Any = place
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, str | int) and not isinstance(value, bool):
                return str(value)
    return None


def _read(body: dict[str, Any], row: dict[str, Any], render: Render | None) -> tuple[str, list[Piece]]:
    if "messages" in body:
        return _written(_messages(body["messages"]), _tools(body), row, render)
    if "input" in body and not isinstance(body["input"], str):
        items = [one for one in _list(body["input"], "input") if isinstance(one, dict) and "role" in one]
        if body.get("instructions"):
            items.insert(0, {"role": "system", "content": str(body["instructions"])})
        return _written(_messages(items), _tools(body), row, render)
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, [Piece(0, len(prompt), "prompt")]
    if prompt is not None:
        raise _BadRow(f"prompt is {_kind(prompt)}; lint reads texts: log the prompt's text, or its messages")
    raise _BadRow(
        "neither messages nor prompt; lint reads logs of messages: a trace of hashes or lengths holds no text"
    )


class _Part(msgspec.Struct, frozen=True):
    """Text, an image or a call of a message."""

    text: str
    kind: Kind = "message"
    name: str = ""
    value: Any = None


class _Message(msgspec.Struct, frozen=True):
    """A message, its parts in order."""

    role: str
    parts: list[_Part]
    raw: dict[str, Any] = {}


def _messages(value: Any) -> list[_Message]:
    found = []
    for at, one in enumerate(_list(value, "messages")):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise _BadRow(f"messages[{at}] has no role")
        found.append(_Message(one["role"], _parts(one, at), one))
    if not found:
        raise _BadRow("messages is empty")
    return found


def _parts(message: dict[str, Any], at: int) -> list[_Part]:
    content = message.get("content")
    parts = []
    if isinstance(content, str):
        parts.append(_Part(content))
    elif isinstance(content, list):
        parts += [_part(one, at) for one in content]
    elif content is not None:
        raise _BadRow(f"messages[{at}].content is {_kind(content)}; it is a text, a list of parts or null")
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", "")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            name = str(function.get("name", ""))
            parts.append(_Part(f"{name} {written}", "call", name))
    return parts


def _part(part: Any, at: int) -> _Part:
    if isinstance(part, str):
        return _Part(part)
    if not isinstance(part, dict):
        raise _BadRow(f"a part of messages[{at}].content is {_kind(part)}; it is an object with a type")
    if isinstance(part.get("text"), str):
        return _Part(part["text"])
    picture = next(
        (part[name] for name in ("image_url", "image", "source", "input_image") if name in part), None
    )
    if isinstance(picture, dict):
        media, data = picture.get("media_type"), picture.get("data")
        picture = (
            f"data:{media};base64,{data}"
            if isinstance(data, str)
            else picture.get("url", json.dumps(picture))
        )
    if isinstance(picture, str):
        # Stands for the picture: equal exactly where the address is.
        return _Part(f"<image {_digest(picture)}>", "image", value=picture)
    return _Part(json.dumps(part, ensure_ascii=False))


def _tools(body: dict[str, Any]) -> list[Any]:
    tools = body.get("tools") or body.get("functions") or []
    return _list(tools, "tools")


def _tool_name(tool: Any) -> str:
    if isinstance(tool, dict):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else tool.get("name")
        return name if isinstance(name, str) else ""
    return ""


class _Writer:
    """A text that grows with its pieces."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.length = 0
        self.pieces: list[Piece] = []

    def add(self, text: str) -> tuple[int, int]:
        start = self.length
        self.text.append(text)
        self.length += len(text)
        return start, self.length

    def message(self, message: _Message, at: int) -> None:
        self.add(f"[{message.role}]\n")
        for part in message.parts:
            self.pieces.append(
                Piece(*self.add(part.text), part.kind, message.role, at, part.name, part.value)
            )
            self.add("\n")

    def tool(self, tool: Any, at: int) -> None:
        written = tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False)
        self.pieces.append(Piece(*self.add(written), "tool", "", at, _tool_name(tool), tool))
        self.add("\n")


def _written(
    messages: list[_Message], tools: list[Any], row: dict[str, Any], render: Render | None
) -> tuple[str, list[Piece]]:
    return _neutral(messages, tools) if render is None else _rendered(messages, tools, row, render)


def _neutral(messages: list[_Message], tools: list[Any]) -> tuple[str, list[Piece]]:
    leading = next((at for at, one in enumerate(messages) if one.role not in _SYSTEM), len(messages))
    writer = _Writer()
    for at, message in enumerate(messages[:leading]):
        writer.message(message, at)
    if tools:
        writer.add("[tools]\n")
    for at, tool in enumerate(tools):
        writer.tool(tool, at)
    for at, message in enumerate(messages[leading:], leading):
        writer.message(message, at)
    return "".join(writer.text), writer.pieces


def _rendered(
    messages: list[_Message], tools: list[Any], row: dict[str, Any], render: Render
) -> tuple[str, list[Piece]]:
    """The template's text, in which the pieces are looked for in order; what is not found is template."""
    flat = []
    for message in messages:
        content = "\n".join(part.text for part in message.parts if part.kind != "call")
        flat.append({**message.raw, "role": message.role, "content": content})
    try:
        text = render(flat, tools or None, row)
    except ValueError as error:
        raise _BadRow(str(error)) from None
    pieces: list[Piece] = []
    cursor = 0
    for at, message in enumerate(messages):
        for part in message.parts:
            written = part.text.strip() if part.kind != "call" else part.text.partition(" ")[2]
            start = text.find(written, cursor) if written else -1
            if start >= 0:
                cursor = start + len(written)
                pieces.append(Piece(start, cursor, part.kind, message.role, at, part.name, part.value))
    cursor = 0
    for at, tool in enumerate(tools):
        written = tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False)
        start = text.find(written, cursor)
        if start >= 0:
            cursor = start + len(written)
            pieces.append(Piece(start, cursor, "tool", "", at, _tool_name(tool), tool))
    return text, sorted(pieces, key=lambda one: one.start)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _BadRow(f"{name} is {_kind(value)}; it is a list")
    return value


def _digest(value: Any) -> str:
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _kind(value: Any) -> str:
    names = {
        "dict": "an object",
        "list": "a list",
        "str": "a text",
        "bool": "true or false",
        "NoneType": "null",
    }
    return names.get(type(value).__name__, "a number")
