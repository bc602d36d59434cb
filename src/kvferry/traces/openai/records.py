"""Lines of request logs in OpenAI's shapes, taken apart.

Owns what may stand in a line: a request itself (messages or prompt, tools, model), one beside its response
({"request": ..., "response": ...}), or an entry of the batch API ({"body": ...}); usage and a time at any of
these places. Says nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..chunk import Problems
from ..lines import read_records

__all__ = ["LoggedRequest", "read_requests", "request_of"]

_TIMES = ("arrival", "timestamp", "time", "ts", "created", "created_at", "start_time")
_FIELDS = {
    "class": "class",
    "service": "service",
    "session": "session",
    "session_id": "session",
    "conversation_id": "session",
    "tenant_class": "tenant_class",
    "user": "user",
    "model": "model",
}
_INNER = ("request", "body", "response")


class LoggedRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One request of a log."""

    line: int
    arrival: float | None
    """Seconds since the epoch, or from an origin of the log's own; None where the line has no time."""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    """Text or token ids of a completion."""
    tools: list[dict[str, Any]] | None = None
    template_arguments: dict[str, Any] = {}
    """chat_template_kwargs, as vLLM takes them."""
    cache_salt: str | None = None
    prompt_tokens: int | None = None
    """As usage says; None without it."""
    completion_tokens: int = 0
    boundary_tokens: int = -1
    fields: dict[str, str] = {}


def read_requests(path: Path, problems: Problems) -> Iterator[LoggedRequest]:
    """The requests of a log, in the order of its lines; lines that are none are booked as problems."""
    decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
    for number, record in read_records(path, decoder, problems):
        try:
            yield request_of(record, number)
        except (ValueError, msgspec.ValidationError) as error:
            problems.add(str(path), number, str(error))


def request_of(record: Mapping[str, Any], line: int) -> LoggedRequest:
    """The request in one line. Raises `ValueError` with what is wrong."""
    places = _places(record)
    body = next((place for place in places if "messages" in place or "prompt" in place), None)
    usage: Mapping[str, Any] = next(
        (place["usage"] for place in places if isinstance(place.get("usage"), Mapping)), {}
    )
    if body is None and not usage:
        raise ValueError(f"neither messages, prompt nor usage; it has {_keys(record)}")
    body = body or record
    extra = body.get("extra_body")
    more = {**body, **extra} if isinstance(extra, Mapping) else body
    messages = body.get("messages")
    if messages is not None:
        _check_objects(messages, "messages")
    fields: dict[str, str] = {}
    for place in places:
        for key, name in _FIELDS.items():
            value = place.get(key)
            if isinstance(value, str) and value:
                fields.setdefault(name, value)
    return LoggedRequest(
        line=line,
        arrival=_time(places),
        messages=messages,
        prompt=_prompt(body.get("prompt")),
        tools=_tools(body.get("tools")),
        template_arguments=dict(more.get("chat_template_kwargs") or {}),
        cache_salt=more.get("cache_salt") or None,
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(usage, "completion_tokens", "output_tokens") or 0,
        boundary_tokens=_boundary(more),
        fields=fields,
    )


def _places(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The line's objects that may hold something: itself, and what it wraps, two deep."""
    places = [record]
    for depth in range(2):
        del depth
        for place in list(places):
            for name in _INNER:
                inner = place.get(name)
                if isinstance(inner, Mapping) and not any(inner is known for known in places):
                    places.append(inner)
    return places


def _time(places: list[Mapping[str, Any]]) -> float | None:
    for place in places:
        for name in _TIMES:
            value = place.get(name)
            if isinstance(value, bool) or value is None:
                continue
            if isinstance(value, int | float):
                return _seconds(float(value))
            if isinstance(value, str):
                try:
                    moment = datetime.fromisoformat(value)
                except ValueError:
                    raise ValueError(
                        f"{name} is {value!r}: write seconds since the epoch, or ISO 8601"
                    ) from None
                return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def _seconds(value: float) -> float:
    """A number of seconds; the epoch in ms, µs or ns is told by its size."""
    for least, per_second in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if value > least:
            return value / per_second
    return value


def _prompt(value: Any) -> str | list[int] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return _prompt(value[0])
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return value
    raise ValueError("prompt is neither a text nor a list of token ids; write one line for each prompt")


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    _check_objects(value, "tools")
    return list(value)


def _check_objects(value: Any, name: str) -> None:
    if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise ValueError(f"{name} is not a list of objects")


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if value is not None:
            if type(value) is not int or value < 0:
                raise ValueError(f"usage.{name} is {value!r}: write a number of tokens")
            return value
    return None


def _boundary(body: Mapping[str, Any]) -> int:
    parameters = body.get("kv_transfer_params")
    ours = parameters.get("kvferry") if isinstance(parameters, Mapping) else None
    value = ours.get("boundary_tokens") if isinstance(ours, Mapping) else None
    return value if type(value) is int and value >= 0 else -1


def _keys(record: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, record))[:8]) or "no keys"
