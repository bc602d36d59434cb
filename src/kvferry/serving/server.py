"""The HTTP server of one replica: OpenAI's routes over an engine, and a few for operators and experiments.

    POST /v1/completions, /v1/chat/completions     streamed or not
    GET  /v1/models, /health, /metrics
    POST /reset_prefix_cache                       forget the engine's own prefix cache
    GET, POST /kvferry/settings                    run-time switches
    GET  /kvferry/decisions?since=N                records of finished requests

Owns routes, status codes and the end of a request whose client has gone. It has no authentication: it is
meant for the loopback interface or a private network behind a gateway.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..errors import KvferryError
from .answers import HANDLERS, json_answer, read_body
from .contract import Controls, End, Engine, Generation
from .controls import control_routes
from .openai import (
    ChatRequest,
    CompletionRequest,
    answer,
    chunk,
    error_body,
    read_request,
    to_generation,
    usage_of,
)

__all__ = ["make_app"]

_CLIENT_CHECK_SECONDS = 0.25
"""How often a request that has sent nothing yet looks whether its client is still there."""

_CLIENT_GONE = 499
"""Nobody reads it; the word of nginx for a closed connection."""

T = TypeVar("T")


def make_app(engine: Engine, controls: Controls | None = None) -> Starlette:
    """The ASGI application. Without `controls` the routes under /kvferry and /metrics answer 404."""
    server = _Server(engine)
    routes = [
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/health", server.health),
        Route("/reset_prefix_cache", server.reset, methods=["POST"]),
    ]
    if controls is not None:
        routes += control_routes(controls)
    return Starlette(routes=routes, exception_handlers=HANDLERS)


class _Server:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def completions(self, request: Request) -> Response:
        return await self._serve(request, CompletionRequest)

    async def chat(self, request: Request) -> Response:
        return await self._serve(request, ChatRequest)

    async def models(self, request: Request) -> Response:
        card = {
            "id": self._engine.model,
            "object": "model",
            "owned_by": "kvferry",
            "max_model_len": self._engine.max_tokens,
        }
        return json_answer({"object": "list", "data": [card]})

    async def health(self, request: Request) -> Response:
        wrong = self._engine.health()
        if wrong is None:
            return json_answer({"status": "ok"})
        return json_answer({"status": "failed", "detail": wrong}, 503)

    async def reset(self, request: Request) -> Response:
        return json_answer({"forgotten_blocks": await run_in_threadpool(self._engine.reset_prefix_cache)})

    async def _serve(self, request: Request, kind: type[CompletionRequest] | type[ChatRequest]) -> Response:
        asked = read_request(await read_body(request), kind)
        chat = kind is ChatRequest
        prefix = "chatcmpl" if chat else "cmpl"
        request_id = asked.request_id or request.headers.get("x-request-id") or f"{prefix}-{uuid.uuid4().hex}"
        generation = to_generation(asked, self._engine, request_id)
        if asked.stream:
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = self._stream(generation, chat, with_usage)
            # The first chunk is awaited here, so that an engine that refuses still gets a proper status.
            first = await _unless_gone(request, _first(events))
            if first is None:
                return Response(status_code=_CLIENT_GONE)
            return StreamingResponse(_after(first, events), media_type="text/event-stream")
        return await self._whole(request, generation, chat)

    async def _whole(self, request: Request, generation: Generation, chat: bool) -> Response:
        collected = await _unless_gone(request, self._collect(generation))
        if collected is None:
            return Response(status_code=_CLIENT_GONE)
        text, end = collected
        size = len(generation.prompt)
        return json_answer(answer(generation.request_id, self._engine.model, chat, text, size, end))

    async def _collect(self, generation: Generation) -> tuple[str, End]:
        parts: list[str] = []
        async with aclosing(self._engine.generate(generation)) as events:
            async for event in events:
                if isinstance(event, End):
                    return "".join(parts), event
                parts.append(event.text)
        raise KvferryError(f"{generation.request_id}: the engine ended without an answer")

    async def _stream(
        self, generation: Generation, chat: bool, with_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        rid, model = generation.request_id, self._engine.model
        first = True
        try:
            async with aclosing(self._engine.generate(generation)) as events:
                async for event in events:
                    if isinstance(event, End):
                        usage = usage_of(len(generation.prompt), event) if with_usage else None
                        yield _sse(chunk(rid, model, chat, "", end=event, usage=usage))
                    else:
                        # A token without visible text is sent too: a client times tokens by chunks.
                        yield _sse(chunk(rid, model, chat, event.text, first=first))
                        first = False
        except KvferryError as error:
            if first:
                raise
            yield _sse(error_body(str(error), "server_error", 500))
        yield b"data: [DONE]\n\n"


async def _first(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None, and the work cancelled, when the client has closed the connection."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_CLIENT_CHECK_SECONDS)
            if not task.done() and await request.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`first`, then the rest; closing this closes the rest, which aborts the request."""
    async with aclosing(rest) as following:
        yield first
        async for part in following:
            yield part


def _sse(value: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
