"""A streaming client that times what a user waits for: the first token, and the whole answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from ..errors import EngineError

__all__ = ["Client", "Reply"]


@dataclass(slots=True)
class Reply:
    """One answer, as the client saw it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Empty when the server does not tell them."""
    ttft_seconds: float | None = None
    """From sending the request to the first token; None when none came."""
    total_seconds: float = 0.0
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    kvferry: dict[str, Any] = field(default_factory=dict)
    """The server's extra object: token_ids, decision, ttft_seconds."""
    gaps_seconds: list[float] = field(default_factory=list)
    """Between consecutive tokens."""

    @property
    def decision(self) -> dict[str, Any] | None:
        """The cache's record of the request."""
        found = self.kvferry.get("decision")
        return found if isinstance(found, dict) else None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server did not compute."""
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens", 0))


class Client:
    """Talks to one server; use as `async with Client(url) as client`.

    Every call raises EngineError when the server refuses, is gone, or takes longer than its timeout.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 120.0, connect_seconds: float = 5.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=connect_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # No limit on connections: a client that queues inside would time itself, not the server.
        self._session = aiohttp.ClientSession(
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"},
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def complete(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """POST /v1/completions, streamed. `options` are further fields of the request."""
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        return await self._stream("/v1/completions", body)

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Reply:
        """POST /v1/chat/completions, streamed."""
        return await self._stream("/v1/chat/completions", {"messages": list(messages), **options})

    async def get(self, path: str) -> Any:
        """The JSON behind a GET."""
        return msgspec.json.decode(await self._call("GET", path, None))

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON behind a POST."""
        return msgspec.json.decode(await self._call("POST", path, body or {}))

    async def text(self, path: str) -> str:
        """The text behind a GET, such as /metrics."""
        return (await self._call("GET", path, None)).decode()

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        try:
            async with self._open().request(method, self.url + path, data=_encode(body)) as response:
                found = await response.read()
                if response.status != 200:
                    raise EngineError(f"{self.url}{path}: {response.status}: {_reason(found)}")
                return found
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _gone(self.url + path, error) from error

    async def _stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        reply = Reply()
        asked = {"stream": True, "stream_options": {"include_usage": True}, **body}
        began = last = time.perf_counter()
        try:
            async with self._open().post(self.url + path, data=_encode(asked)) as response:
                if response.status != 200:
                    raise EngineError(
                        f"{self.url}{path}: {response.status}: {_reason(await response.read())}"
                    )
                async for event in _events(response.content):
                    now = time.perf_counter()
                    if _take(reply, event, f"{self.url}{path}"):
                        if reply.ttft_seconds is None:
                            reply.ttft_seconds = now - began
                        else:
                            reply.gaps_seconds.append(now - last)
                        last = now
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _gone(self.url + path, error) from error
        reply.total_seconds = time.perf_counter() - began
        if reply.finish_reason is None:
            raise EngineError(f"{self.url}{path}: the stream ended early, after {len(reply.text)} characters")
        return reply

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client as `async with Client(url) as client`")
        return self._session


def _take(reply: Reply, event: dict[str, Any], where: str) -> bool:
    """Add one event to the reply; whether it carried a token."""
    if "error" in event:
        raise EngineError(f"{where}: {event['error'].get('message', event['error'])}")
    reply.usage = event.get("usage") or reply.usage
    if ours := event.get("kvferry"):
        reply.kvferry = ours
        reply.token_ids = list(ours.get("token_ids") or ())
    carried = False
    for choice in event.get("choices") or ():
        text = choice.get("text")
        if text is None:
            text = (choice.get("delta") or {}).get("content")
        if reason := choice.get("finish_reason"):
            reply.finish_reason = reason
        # Other servers may put the last token and the reason into one chunk; ours never does.
        carried = carried or (text is not None and (bool(text) or not reason))
        reply.text += text or ""
    return carried


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    buffer = b""
    async for part in content.iter_any():
        buffer += part
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            data = line.strip()
            if not data.startswith(b"data:"):
                continue
            data = data[5:].strip()
            if data == b"[DONE]":
                return
            yield msgspec.json.decode(data, type=dict[str, Any])


def _encode(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _gone(url: str, error: BaseException) -> EngineError:
    what = "took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return EngineError(f"{url}: {what}")
