from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

Call = Callable[..., tuple[int, Any]]


def test_a_completion_is_answered(url: str, call: Call) -> None:
    status, body = call(url, "/v1/completions", {"prompt": "hello", "max_tokens": 3})
    assert (status, body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (200, "hel", "length")


def test_a_chat_is_answered(url: str, call: Call) -> None:
    _, body = call(
        url, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hey"}], "max_tokens": 3}
    )
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hey"}


def test_a_chat_may_go_on_to_the_end_of_the_context(url: str, call: Call, engine: Any) -> None:
    call(url, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hey"}]})
    assert engine.seen[0].sampling.max_tokens == 97


def test_usage_counts_cached_tokens(url: str, call: Call) -> None:
    _, body = call(url, "/v1/completions", {"prompt": "hello", "max_tokens": 3})
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_the_answer_carries_ids_and_decision(url: str, call: Call) -> None:
    _, body = call(url, "/v1/completions", {"prompt": "hi"})
    assert body["kvferry"] == {"token_ids": [104, 105], "decision": {"choice": "load"}, "ttft_seconds": 0.25}


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], ["hi"], "hi"])
def test_a_prompt_may_be_text_or_ids(url: str, call: Call, engine: Any, prompt: Any) -> None:
    call(url, "/v1/completions", {"prompt": prompt})
    assert engine.seen[0].prompt == (104, 105)


def test_fields_of_ours_reach_the_engine(url: str, call: Call, engine: Any) -> None:
    extra = {"kvferry": {"boundary_tokens": 4, "decision_id": "d"}, "do_remote_decode": True}
    call(url, "/v1/completions", {"prompt": "hi", "cache_salt": "s", "kv_transfer_params": extra})
    seen = engine.seen[0]
    assert (seen.fields.boundary_tokens, seen.fields.decision_id, seen.cache_salt) == (4, "d", "s")


def test_the_request_id_is_the_clients(url: str, call: Call) -> None:
    assert call(url, "/v1/completions", {"prompt": "hi", "request_id": "mine"})[1]["id"] == "mine"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [256]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "x" * 100}, "prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 100}, "max_tokens"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "seed": -1}, "seed"),
        ({"prompt": "x", "n": 2}, "n"),
        ({"prompt": "x", "stop": ""}, "stop"),
        ({"prompt": "x", "logprobs": 1}, "logprobs"),
        ({"prompt": "x", "model": "other"}, "model"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "x", "kv_transfer_params": {"kvferry": {"boundary": 3}}}, "'boundary'"),
        ({"prompt": "x", "kv_transfer_params": {"kvferry": {"max_load_tokens": -1}}}, "max_load_tokens"),
    ],
)
def test_what_is_wrong_is_named(url: str, call: Call, body: Any, named: str) -> None:
    status, answer = call(url, "/v1/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert named in answer["error"]["message"]


def test_a_body_that_is_no_json_is_refused(url: str, call: Call) -> None:
    assert call(url, "/v1/completions", raw=b"{")[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
        {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
    ],
)
def test_chats_that_cannot_be_served_are_refused(url: str, call: Call, body: Any) -> None:
    assert call(url, "/v1/chat/completions", body)[0] == 400


def test_an_engine_error_is_a_503(url: str, call: Call, engine: Any) -> None:
    engine.fails_at = 0
    status, body = call(url, "/v1/completions", {"prompt": "hi"})
    assert (status, body["error"]["message"]) == (503, "the engine broke")


def test_an_engine_error_before_the_first_chunk_is_a_503(url: str, call: Call, engine: Any) -> None:
    engine.fails_at = 0
    assert call(url, "/v1/completions", {"prompt": "hi", "stream": True})[0] == 503


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_an_engine_error_later_is_an_event(url: str, call: Call, engine: Any) -> None:
    engine.fails_at = 1
    _, text = call(url, "/v1/completions", {"prompt": "hi", "stream": True})
    assert events(text)[-1]["error"]["message"] == "the engine broke"


def test_a_stream_has_one_chunk_per_token_and_a_last_one(url: str, call: Call) -> None:
    _, text = call(url, "/v1/completions", {"prompt": "hello", "stream": True})
    assert [event["choices"][0]["text"] for event in events(text)] == ["h", "e", "l", "l", "o", ""]


def test_a_stream_ends_with_done(url: str, call: Call) -> None:
    assert call(url, "/v1/completions", {"prompt": "hi", "stream": True})[1].endswith("data: [DONE]\n\n")


def test_the_last_chunk_carries_ids_and_decision(url: str, call: Call) -> None:
    _, text = call(url, "/v1/completions", {"prompt": "hi", "stream": True})
    assert events(text)[-1]["kvferry"]["token_ids"] == [104, 105]


@pytest.mark.parametrize("wanted", [True, False])
def test_usage_in_a_stream_only_when_asked_for(url: str, call: Call, wanted: bool) -> None:
    body = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": wanted}}
    assert ("usage" in events(call(url, "/v1/completions", body)[1])[-1]) == wanted


def test_a_streamed_chat_begins_with_the_role(url: str, call: Call) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    deltas = [event["choices"][0]["delta"] for event in events(call(url, "/v1/chat/completions", body)[1])]
    assert deltas == [{"role": "assistant", "content": "h"}, {"content": "i"}, {}]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_request(url: str, engine: Any, stream: bool) -> None:
    engine.pause_seconds = 30.0

    async def leave() -> None:
        async with aiohttp.ClientSession() as session:
            body = {"prompt": "hello", "stream": stream, "request_id": "gone"}
            asking = asyncio.create_task(session.post(f"{url}/v1/completions", json=body))
            for _ in range(400):
                if engine.seen:
                    break
                await asyncio.sleep(0.005)
            asking.cancel()

    async def ended() -> bool:
        for _ in range(400):
            if engine.ended:
                return True
            await asyncio.sleep(0.01)
        return False

    asyncio.run(leave())
    assert asyncio.run(ended())


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_request(url: str, engine: Any) -> None:
    engine.pause_seconds = 0.05

    async def leave() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{url}/v1/completions", json={"prompt": "x" * 80, "max_tokens": 20, "stream": True}
            ) as reply,
        ):
            await reply.content.readline()

    async def ended() -> bool:
        for _ in range(300):
            if engine.ended:
                return True
            await asyncio.sleep(0.01)
        return False

    asyncio.run(leave())
    assert asyncio.run(ended())


def test_models_lists_the_one(url: str, call: Call) -> None:
    assert call(url, "/v1/models")[1]["data"][0]["id"] == "echo"


def test_healthy(url: str, call: Call) -> None:
    assert call(url, "/health") == (200, {"status": "ok"})


def test_not_healthy(url: str, call: Call, engine: Any) -> None:
    engine.ill = "broken"
    assert call(url, "/health") == (503, {"status": "failed", "detail": "broken"})


def test_reset(url: str, call: Call) -> None:
    assert call(url, "/reset_prefix_cache", {}) == (200, {"forgotten_blocks": 7})


def test_settings_are_shown(url: str, call: Call) -> None:
    assert call(url, "/kvferry/settings") == (200, {"mode": "on"})


def test_settings_are_changed(url: str, call: Call) -> None:
    assert call(url, "/kvferry/settings", {"mode": "off"}) == (200, {"mode": "off"})


@pytest.mark.parametrize("body", [{"nope": 1}, [1]])
def test_settings_that_do_not_exist_are_refused(url: str, call: Call, body: Any) -> None:
    assert call(url, "/kvferry/settings", body)[0] == 400


def test_decisions_since(url: str, call: Call) -> None:
    assert call(url, "/kvferry/decisions?since=2") == (200, {"decisions": [{"number": 2}], "next": 3})


@pytest.mark.parametrize("since", ["-1", "x"])
def test_decisions_since_nonsense(url: str, call: Call, since: str) -> None:
    assert call(url, f"/kvferry/decisions?since={since}")[0] == 400


def test_metrics_are_text(url: str, call: Call) -> None:
    assert call(url, "/metrics") == (200, "kvferry_up 1\n")


@pytest.mark.parametrize("path", ["/metrics", "/kvferry/settings", "/nope"])
def test_what_is_not_there_is_a_404(bare_url: str, call: Call, path: str) -> None:
    status, body = call(bare_url, path)
    assert (status, path in body["error"]["message"]) == (404, True)
