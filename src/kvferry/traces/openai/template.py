"""From messages to the text that a model is given: a chat template, rendered as engines render it.

Owns the sandboxed jinja environment and what templates expect to find in it. The contract is that of chat
templates in tokenizer_config.json (documented by Hugging Face transformers): variables messages, tools,
documents, add_generation_prompt and the special tokens; raise_exception, strftime_now, a tojson that leaves
text alone, loop controls, and {% generation %} blocks. The time that strftime_now tells is the request's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import FormatError

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """One template. Raises `FormatError` where it does not parse."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special = dict(special_tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise FormatError(f"the chat template does not parse: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        arrival: float = 0.0,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, up to where the answer begins. `arrival` is in seconds since the epoch.

        Raises `ValueError` where the template refuses these messages.
        """
        moment = datetime.fromtimestamp(arrival, UTC)
        try:
            return self._template.render(
                messages=[_message(message) for message in messages],
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=True,
                strftime_now=moment.strftime,
                **{**self._special, **(arguments or {})},
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: parts of text joined, arguments of tool calls as objects."""
    ready = dict(message)
    content = ready.get("content")
    if isinstance(content, list):
        ready["content"] = "\n".join(_part(part) for part in content)
    calls = ready.get("tool_calls")
    if isinstance(calls, list):
        ready["tool_calls"] = [_call(call) for call in calls]
    return ready


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ValueError(f"a message has a part of type {kind!r}: only text can be turned into tokens")


def _call(call: Any) -> Any:
    if not (isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)):
        return call
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError:
            pass  # not JSON: a template gets the text as the model wrote it
    return {**call, "function": function}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(Extension):
    """{% generation %} marks the answer in templates made for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
