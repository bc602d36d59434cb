"""What one request may say: the object `kvferry` inside its kv_transfer_params, and vLLM's hand-off words.

Owns the fields and their strict reading. A request can only ask for less: it can move the publication
boundary to the front, name a stricter data class or lower its loads, never widen what the replica allows.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ConfigError

__all__ = ["RequestFields", "parse_request_fields"]

_NAME = "kv_transfer_params.kvferry"
_LONGEST_TEXT = 256


class RequestFields(msgspec.Struct, frozen=True, kw_only=True):
    """Per-request fields; None leaves the replica's own setting."""

    boundary_tokens: int | None = None
    """Tokens from the front that may be published: personal content begins behind them."""
    data_class: str | None = None
    """The class of the request's data."""
    decision_id: str | None = None
    """An id under which whoever routed the request finds its decision again."""
    max_load_tokens: int | None = None
    """Most tokens to load; 0 means recompute."""
    deadline_seconds: float | None = None
    """Longest wait for a load, from the request's arrival."""
    handoff_tokens: int | None = None
    """Tokens that the replica which did this request's prefill publishes for it."""
    accept_mapped: bool | None = None
    """Whether KV that was mapped from another model, which is lossy, may serve this request: the caller's
    consent. It needs the operator's permission besides."""
    gives: bool = False
    """Another replica will decode: publish the prompt whatever its popularity (`do_remote_decode`)."""


def parse_request_fields(params: Mapping[str, Any] | None) -> RequestFields:
    """Read `params["kvferry"]`; other keys of kv_transfer_params belong to others and are ignored.

    Raises `ConfigError` that names the field, for an unknown one, a wrong type or a value out of bounds.
    """
    if params is None:
        return RequestFields()
    if not isinstance(params, Mapping):
        raise ConfigError(f"kv_transfer_params: {params!r} is not an object")
    gives = params.get("do_remote_decode") is True
    given = params.get("kvferry")
    if given is None:
        return RequestFields(gives=gives)
    if not isinstance(given, Mapping):
        raise ConfigError(f'{_NAME}: {given!r} is not an object; write {{"boundary_tokens": 1536}}')
    known = [name for name in RequestFields.__struct_fields__ if name != "gives"]
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"{_NAME}: unknown field {key!r}; {hint}")
    return RequestFields(
        boundary_tokens=_tokens(given, "boundary_tokens"),
        data_class=_text(given, "data_class"),
        decision_id=_text(given, "decision_id"),
        max_load_tokens=_tokens(given, "max_load_tokens"),
        deadline_seconds=_seconds(given, "deadline_seconds"),
        handoff_tokens=_tokens(given, "handoff_tokens"),
        accept_mapped=_word(given, "accept_mapped"),
        gives=gives,
    )


def _tokens(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{_NAME}.{key}: {value!r} is no count of tokens; write a whole number, 0 or more")
    return value


def _seconds(given: Mapping[str, Any], key: str) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ConfigError(f"{_NAME}.{key}: {value!r} is no number of seconds above 0; write one such as 2.5")
    return float(value)


def _word(given: Mapping[str, Any], key: str) -> bool | None:
    value = given.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{_NAME}.{key}: {value!r} is neither; write true or false")
    return value


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT:
        raise ConfigError(f"{_NAME}.{key}: write a text of 1 to {_LONGEST_TEXT} characters")
    return value
