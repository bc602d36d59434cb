"""The OpenAI API's requests and responses, as far as a replica of ours serves them.

Owns the schemas, their defaults and what is said to a client that sends something else. Fields that only
tune what we do not do (user, metadata, ...) are accepted and ignored; fields that would change the answer
(n, logprobs, ...) are refused unless they ask for what happens anyway. Knows no HTTP.

Ours beside OpenAI's: `request_id`, `cache_salt` and `kv_transfer_params` are vLLM's names; `ignore_eos` too.
Each answer, or the last chunk of a stream, carries a top-level object `kvferry` with the generated token
ids, the cache's decision record and the engine's own time to the first token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..config import parse_request_fields
from ..errors import InputError
from .contract import End, Engine, Generation, Sampling

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "answer",
    "chunk",
    "error_body",
    "read_request",
    "to_generation",
    "usage_of",
]

_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; chats may go on to the end of the context."""

_OURS = "kvferry"


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside text."""

    include_usage: bool = False


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chats have in common."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    """0 (greedy) unless given: answers here are there to be compared."""
    top_p: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionRequest(_Request, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[int | str | list[int]]
    """One prompt, as text or as token ids, alone or in a list of one."""
    echo: bool = False
    best_of: int = 1
    logprobs: int | None = None
    suffix: str | None = None


class ChatRequest(_Request, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    response_format: dict[str, Any] | None = None


def read_request(body: bytes, kind: type[CompletionRequest] | type[ChatRequest]) -> Any:
    """Decode and check a body; raises InputError that names the field."""
    try:
        request: CompletionRequest | ChatRequest = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from None
    except msgspec.DecodeError as error:
        raise InputError(f"the body is not JSON: {error}") from None
    _refuse(request.n != 1, "n", "only 1 is served")
    _refuse(not 0 <= request.temperature <= 100, "temperature", "write a number from 0 (greedy) to 100")
    _refuse(not 0 < request.top_p <= 1, "top_p", "write a number above 0, at most 1")
    _refuse(
        request.seed is not None and not 0 <= request.seed < 1 << 63, "seed", "write 0 or more, below 2**63"
    )
    _refuse(request.cache_salt == "", "cache_salt", "leave it out, or write a text that is not empty")
    _refuse(request.request_id == "", "request_id", "leave it out, or write a text that is not empty")
    if isinstance(request, ChatRequest):
        _refuse(not request.messages, "messages", "write at least one message")
        _refuse(request.logprobs, "logprobs", "they are not served")
        given = (request.response_format or {}).get("type", "text")
        _refuse(given != "text", "response_format", "only plain text is served")
    else:
        _refuse(request.echo, "echo", "it is not served")
        _refuse(request.best_of != 1, "best_of", "only 1 is served")
        _refuse(request.logprobs is not None, "logprobs", "they are not served")
        _refuse(bool(request.suffix), "suffix", "it is not served")
    return request


def to_generation(request: CompletionRequest | ChatRequest, engine: Engine, request_id: str) -> Generation:
    """The prompt's tokens and all limits, checked against the engine. Raises InputError."""
    if request.model is not None and request.model != engine.model:
        raise InputError(
            f"model {request.model!r} is not served here; write {engine.model!r}, or leave it out"
        )
    fields = parse_request_fields(request.kv_transfer_params)
    if isinstance(request, ChatRequest):
        ids = engine.render(request.messages, request.tools)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    else:
        ids = _prompt(request.prompt, engine)
        asked = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    room = engine.max_tokens - len(ids)
    if not ids:
        raise InputError("prompt: it has no tokens; write at least one")
    if room < 1:
        raise InputError(
            f"prompt: {len(ids)} tokens do not fit the context of {engine.max_tokens} with room for an answer"
        )
    if asked is None:
        asked = room
    if not 1 <= asked <= room:
        raise InputError(
            f"max_tokens: {asked} is not possible behind a prompt of {len(ids)} tokens "
            f"in a context of {engine.max_tokens}; write 1 to {room}"
        )
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    _refuse(any(not text for text in stop), "stop", "an empty stop string would end every answer at once")
    sampling = Sampling(
        max_tokens=asked,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=stop,
        ignore_eos=request.ignore_eos,
    )
    return Generation(request_id, tuple(ids), sampling, request.cache_salt, fields)


def usage_of(prompt_tokens: int, end: End) -> dict[str, Any]:
    """The `usage` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(end.token_ids),
        "total_tokens": prompt_tokens + len(end.token_ids),
        "prompt_tokens_details": {"cached_tokens": end.cached_tokens},
    }


def answer(
    request_id: str, model: str, chat: bool, text: str, prompt_tokens: int, end: End
) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": request_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": end.reason}],
        "usage": usage_of(prompt_tokens, end),
        _OURS: _ours(end),
    }


def chunk(
    request_id: str,
    model: str,
    chat: bool,
    text: str,
    *,
    first: bool = False,
    end: End | None = None,
    usage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One chunk of a stream; with `end` the last one, which names the reason and carries `kvferry`."""
    if chat:
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        said: dict[str, Any] = {"delta": delta if end is not None else {**delta, "content": text}}
    else:
        said = {"text": text}
    body: dict[str, Any] = {
        "id": request_id,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": end.reason if end else None}],
    }
    if end is not None:
        body[_OURS] = _ours(end)
    if usage is not None:
        body["usage"] = usage
    return body


def error_body(
    message: str, kind: Literal["invalid_request_error", "server_error"], code: int
) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _ours(end: End) -> dict[str, Any]:
    return {
        "token_ids": list(end.token_ids),
        "decision": end.decision,
        "ttft_seconds": end.ttft_seconds,
    }


def _prompt(prompt: str | list[int | str | list[int]], engine: Engine) -> list[int]:
    one: str | list[int] | list[int | str | list[int]] = prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        _refuse(len(prompt) != 1, "prompt", f"{len(prompt)} prompts in one request; send them one by one")
        one = prompt[0]
    if isinstance(one, str):
        _refuse(not one, "prompt", "it is empty; write at least one character")
        return engine.encode(one)
    ids: list[int] = []
    for index, token in enumerate(one):
        if not isinstance(token, int) or not 0 <= token < engine.vocabulary:
            raise InputError(f"prompt[{index}]: {token!r} is no token id; write 0 to {engine.vocabulary - 1}")
        ids.append(token)
    return ids


def _refuse(wrong: bool, field: str, instead: str) -> None:
    if wrong:
        raise InputError(f"{field}: {instead}")
