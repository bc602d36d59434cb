"""What every HTTP application of kvferry answers alike: JSON bodies, and errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import InputError, KvferryError
from .openai import error_body

__all__ = ["HANDLERS", "decode", "json_answer", "read_body"]

_LARGEST_BODY = 64 << 20


async def read_body(request: Request) -> bytes:
    """The whole body; HTTPException 413 beyond 64 MiB."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > _LARGEST_BODY:
            raise HTTPException(413, f"the body is larger than {_LARGEST_BODY} bytes")
        parts.append(part)
    return b"".join(parts)


def decode(body: bytes) -> Any:
    """A JSON body. Raises InputError."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def json_answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON document as an answer."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def _bad_request(request: Request, error: Exception) -> Response:
    return json_answer(error_body(str(error), "invalid_request_error", 400), 400)


async def _unavailable(request: Request, error: Exception) -> Response:
    return json_answer(error_body(str(error), "server_error", 503), 503)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else ""
    message = f"{request.method} {request.url.path}: {detail}"
    return json_answer(error_body(message, "invalid_request_error", status), status)


async def _internal(request: Request, error: Exception) -> Response:
    # The traceback is logged by whoever runs the application.
    return json_answer(error_body(f"internal error: {type(error).__name__}", "server_error", 500), 500)


HANDLERS: dict[Any, Any] = {
    InputError: _bad_request,
    KvferryError: _unavailable,
    HTTPException: _http_error,
    Exception: _internal,
}
"""How exceptions of a route become answers."""
