from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvferry.errors import EngineError
from kvferry.serving.client import Client


def talk(url: str, what: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with Client(url, **options) as client:
            return await what(client)

    return asyncio.run(run())


def test_text_and_ids_come_back(url: str) -> None:
    reply = talk(url, lambda client: client.complete("hello", max_tokens=3))
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("hel", [104, 101, 108], "length")


def test_a_chat_comes_back(url: str) -> None:
    reply = talk(url, lambda client: client.chat([{"role": "user", "content": "hey"}], max_tokens=3))
    assert reply.text == "hey"


def test_the_first_token_is_timed_and_so_are_the_gaps(url: str, engine: Any) -> None:
    engine.pause_seconds = 0.02
    reply = talk(url, lambda client: client.complete("hello"))
    assert reply.ttft_seconds is not None
    assert 0.02 <= reply.ttft_seconds <= reply.total_seconds
    assert len(reply.gaps_seconds) == 4


def test_decision_and_cached_tokens_come_back(url: str) -> None:
    reply = talk(url, lambda client: client.complete("hello"))
    assert (reply.decision, reply.cached_tokens) == ({"choice": "load"}, 3)


def test_a_refusal_says_why(url: str) -> None:
    with pytest.raises(EngineError, match="400: prompt: it is empty"):
        talk(url, lambda client: client.complete(""))


def test_an_error_in_the_stream_is_raised(url: str, engine: Any) -> None:
    engine.fails_at = 2
    with pytest.raises(EngineError, match="the engine broke"):
        talk(url, lambda client: client.complete("hello"))


def test_a_slow_server_is_given_up(url: str, engine: Any) -> None:
    engine.pause_seconds = 20.0
    with pytest.raises(EngineError, match="took too long"):
        talk(url, lambda client: client.complete("hello"), timeout_seconds=0.2)


def test_a_server_that_is_gone_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1"):
        talk("http://127.0.0.1:1", lambda client: client.get("/health"))


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: [DONE]\n\n"],
        [b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n', b"data: [DONE]\n\n"],
        [b'data: {"choices": [{"te'],
    ],
)
def test_a_stream_that_ends_early_is_an_error(parts: list[bytes]) -> None:
    with pytest.raises(EngineError, match="ended early"):
        talk_to_raw(parts)


def test_chunks_may_be_cut_anywhere() -> None:
    whole = b'data: {"choices": [{"text": "ab", "finish_reason": "stop"}]}\r\n\r\ndata: [DONE]\n\n'
    assert talk_to_raw([whole[index : index + 3] for index in range(0, len(whole), 3)]).text == "ab"


def test_keep_alive_comments_are_skipped() -> None:
    parts = [b": ping\n\n", b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n']
    assert talk_to_raw(parts).text == "a"


def test_json_and_text_routes(url: str) -> None:
    async def both(client: Client) -> Any:
        return (
            await client.get("/health"),
            await client.text("/metrics"),
            await client.post("/kvferry/settings", {}),
        )

    assert talk(url, both) == ({"status": "ok"}, "kvferry_up 1\n", {"mode": "on"})


def talk_to_raw(parts: list[bytes]) -> Any:
    """A server that sends exactly these parts, each by itself."""

    async def run() -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.002)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with Client(f"http://127.0.0.1:{port}", timeout_seconds=10) as client:
                return await client.complete("x")
        finally:
            server.close()

    return asyncio.run(run())
