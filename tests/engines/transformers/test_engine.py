"""The embedded engine behind its real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry.clock import MonotonicClock
from kvferry.engines.transformers.engine import TransformersEngine
from kvferry.errors import EngineError, InputError
from kvferry.serving.client import Client
from kvferry.serving.listen import serving
from kvferry.serving.server import make_app


@pytest.fixture
def stack(stacks: Callable[..., Any], pool_cache: Any) -> Any:
    return stacks(pool_cache(), chunk_tokens=8)


@pytest.fixture
def engine(stack: Any) -> TransformersEngine:
    return TransformersEngine(stack.runner, stack.arena, stack.scheduler, MonotonicClock())


@pytest.fixture
def url(engine: TransformersEngine) -> Iterator[str]:
    with serving(make_app(engine)) as where:
        yield where


def ask(url: str, *bodies: dict[str, Any]) -> list[Any]:
    async def talk() -> list[Any]:
        async with Client(url, timeout_seconds=30) as client:
            return await asyncio.gather(
                *(client.complete(max_tokens=4, ignore_eos=True, **body) for body in bodies)
            )

    return asyncio.run(talk())


def test_text_and_ids_of_one_prompt_answer_alike(url: str, engine: TransformersEngine) -> None:
    first, second = ask(url, {"prompt": "hello there"}, {"prompt": engine.encode("hello there")})
    assert first.token_ids == second.token_ids


def test_the_second_time_is_a_local_hit(url: str, prompts: Callable[..., list[int]]) -> None:
    (cold,), (hit,) = ask(url, {"prompt": prompts(44)}), ask(url, {"prompt": prompts(44)})
    assert (hit.cached_tokens, hit.token_ids) == (40, cold.token_ids)


def test_the_decision_reaches_the_client(url: str) -> None:
    (reply,) = ask(url, {"prompt": "x", "request_id": "mine"})
    assert reply.decision == {"rid": "mine", "aborted": False}


def test_fields_reach_the_cache(url: str, stack: Any) -> None:
    extra = {"kv_transfer_params": {"kvferry": {"max_load_tokens": 8}}, "cache_salt": "s"}
    ask(url, {"prompt": "x", "request_id": "mine", **extra})
    request = stack.cache.requests["mine"]
    assert (request.fields.max_load_tokens, request.cache_salt) == (8, "s")


def test_a_client_that_leaves_in_prefill_ends_the_request(url: str, stack: Any) -> None:
    async def leave() -> None:
        async with Client(url) as client:
            asking = asyncio.create_task(client.complete([1] * 500, max_tokens=4, request_id="gone"))
            for _ in range(400):
                if stack.cache.steps:
                    break
                await asyncio.sleep(0.005)
            asking.cancel()

    asyncio.run(leave())
    for _ in range(200):
        if stack.cache.named("finish"):
            break
        asyncio.run(asyncio.sleep(0.02))
    assert stack.cache.named("finish")[0][:2] == ("finish", "gone")


def test_reset_forgets(url: str, prompts: Callable[..., list[int]]) -> None:
    ask(url, {"prompt": prompts(44)})

    async def reset() -> Any:
        async with Client(url) as client:
            return await client.post("/reset_prefix_cache")

    assert asyncio.run(reset()) == {"forgotten_blocks": 5}


def test_a_chat_goes_through_the_template(engine: TransformersEngine) -> None:
    assert engine.render([{"role": "user", "content": "a"}], None) == [258, *engine.encode("a"), 259]


def test_tools_go_through_the_template(engine: TransformersEngine) -> None:
    with_tools = engine.render([{"role": "user", "content": "a"}], [{"type": "function"}])
    assert len(with_tools) > 3


def test_messages_that_the_template_refuses_are_the_clients_fault(engine: TransformersEngine) -> None:
    with pytest.raises(InputError, match="messages"):
        engine.render([{"role": "user", "content": object()}], [{"bad": object()}])


def test_a_broken_engine_is_not_healthy(engine: TransformersEngine, stack: Any) -> None:
    stack.scheduler.stop()
    assert engine.health() is not None


def test_a_stopped_engine_refuses_over_http(url: str, stack: Any) -> None:
    stack.scheduler.stop()
    with pytest.raises(EngineError, match="503"):
        ask(url, {"prompt": "x"})
