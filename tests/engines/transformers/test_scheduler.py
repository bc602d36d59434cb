from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.cache.commands import Free
from kvferry.engines.transformers.request import Ended, Failed, Written

Stacks = Callable[..., Any]
Prompts = Callable[..., list[int]]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_a_local_hit_gives_the_same_tokens(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    cold, hit = stack.run("a", prompts(44)), stack.run("b", prompts(44))
    assert hit.token_ids == cold.token_ids


def test_a_local_hit_counts_whole_blocks(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.run("a", prompts(44))
    assert stack.run("b", prompts(44)).cached_tokens == 40


def test_a_prompt_of_whole_blocks_leaves_its_last_block_to_compute(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.run("a", prompts(40))
    assert stack.run("b", prompts(40)).cached_tokens == 32


@pytest.mark.parametrize("chunk", [1, 5, 8, 16, 256])
def test_the_chunk_size_does_not_change_the_answer(stacks: Stacks, prompts: Prompts, chunk: int) -> None:
    expected = stacks().run("a", prompts(44)).token_ids
    stack = stacks(chunk_tokens=chunk)
    stack.run("a", prompts(20))
    assert stack.run("b", prompts(44)).token_ids == expected


def test_a_pool_hit_gives_the_same_tokens(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    pool: dict[bytes, bytes] = {}
    cold = stacks(pool_cache(pool)).run("a", prompts(44))
    hit = stacks(pool_cache(pool)).run("b", prompts(44))
    assert (hit.token_ids, hit.cached_tokens) == (cold.token_ids, 40)


def test_a_load_begins_behind_the_local_blocks(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool))
    stack.run("b", prompts(44)[:17])
    stack.run("c", prompts(44))
    _, start, stop = stack.cache.memory["c"]
    assert (start, stop) == (2, 5)


def test_a_loaded_block_is_a_local_hit_afterwards(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool))
    stack.run("b", prompts(44))
    stack.run("c", prompts(44))
    assert [call[2] for call in stack.cache.named("ask") if call[1] == "c"] == [40]


def test_a_load_that_ends_early_is_used_as_far_as_it_came(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    pool: dict[bytes, bytes] = {}
    cold = stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool, hold=True))
    heard = stack.submit("b", prompts(44))
    stack.cache.deliver(stack.cache.begun.get(timeout=20), 2)
    hit = heard.ended()
    assert (hit.token_ids, hit.cached_tokens) == (cold.token_ids, 16)


def test_memory_behind_an_unsafe_load_waits_for_free(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool, hold=True))
    heard = stack.submit("b", prompts(44), max_tokens=1)
    stack.cache.deliver(stack.cache.begun.get(timeout=20), 2, safe=False)
    heard.ended()
    assert stack.on_engine(lambda: stack.arena.available) == 64 - 3
    stack.cache.tell(Free("b"))
    assert until(lambda: stack.on_engine(lambda: stack.arena.available) == 64)


def test_nothing_unverified_is_found_by_hash(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool, hold=True))
    heard = stack.submit("b", prompts(44))
    stack.cache.begun.get(timeout=20)
    assert stack.on_engine(lambda: stack.arena.cached) == 0
    stack.cache.deliver("b", 0)
    heard.ended()


def test_memory_of_a_store_waits_for_free(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    stack = stacks(pool_cache(lend=True))
    stack.run("a", prompts(44))
    assert stack.on_engine(lambda: stack.arena.available) == 64 - 5
    stack.cache.tell(Free("a"))
    assert until(lambda: stack.on_engine(lambda: stack.arena.available) == 64)


def test_an_abort_while_loading_keeps_the_memory_until_free(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool, hold=True))
    heard = stack.submit("b", prompts(44))
    stack.cache.begun.get(timeout=20)
    stack.scheduler.abort("b")
    assert heard.ended().reason == "abort"
    assert stack.on_engine(lambda: stack.arena.available) == 64 - 5
    stack.cache.tell(Free("b"))
    assert until(lambda: stack.on_engine(lambda: stack.arena.available) == 64)


def test_an_abort_in_prefill_gives_everything_back(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    stack = stacks(pool_cache(), chunk_tokens=1)
    heard = stack.submit("a", prompts(400))
    assert until(lambda: len(stack.cache.steps) > 3)
    stack.scheduler.abort("a")
    assert heard.ended().token_ids == ()
    assert stack.cache.named("finish") == [("finish", "a", True)]


def test_an_abort_while_decoding_keeps_the_prompts_blocks(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    heard = stack.submit("a", prompts(44), max_tokens=400)
    assert isinstance(heard.outputs.get(timeout=20), Written)
    stack.scheduler.abort("a")
    assert heard.ended().reason == "abort"
    assert stack.on_engine(lambda: stack.arena.cached) == 5


def test_an_abort_of_an_unknown_request_is_nothing(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.scheduler.abort("who")
    assert stack.run("a", prompts(9)).reason == "length"


def test_a_request_waits_in_the_queue_and_can_be_aborted_there(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks(max_active=1)
    first = stack.submit("a", prompts(44), max_tokens=300)
    second = stack.submit("b", prompts(44))
    stack.scheduler.abort("b")
    assert second.ended().reason == "abort"
    stack.scheduler.abort("a")
    first.ended()


def test_concurrent_requests_answer_as_if_alone(stacks: Stacks, prompts: Prompts) -> None:
    alone = [stacks().run("x", prompts(44, seed)).token_ids for seed in range(3)]
    stack = stacks(chunk_tokens=8)
    heard = [stack.submit(f"r{seed}", prompts(44, seed)) for seed in range(3)]
    assert [one.ended().token_ids for one in heard] == alone


def test_a_waiting_request_uses_what_the_one_before_it_computed(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    stack = stacks(pool_cache(), chunk_tokens=8)
    heard = [stack.submit(rid, prompts(44)) for rid in ("a", "b")]
    assert [one.ended().cached_tokens for one in heard] == [0, 40]


def test_what_was_gained_while_waiting_is_told_to_the_cache(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    stack = stacks(pool_cache(), chunk_tokens=8)
    heard = [stack.submit(rid, prompts(44)) for rid in ("a", "b")]
    for one in heard:
        one.ended()
    assert [call[2] for call in stack.cache.named("ask") if call[1] == "b"][-1] == 40


def test_another_salt_finds_nothing(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.run("a", prompts(44), salt="one")
    assert stack.run("b", prompts(44), salt="two").cached_tokens == 0


def test_an_arena_too_small_for_the_prompt_keeps_its_head(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks(blocks=3)
    cold = stack.run("a", prompts(44))
    hit = stack.run("b", prompts(44))
    assert (hit.cached_tokens, hit.token_ids) == (24, cold.token_ids)


def test_a_one_token_prompt_is_answered(stacks: Stacks, prompts: Prompts) -> None:
    assert len(stacks().run("a", prompts(1)).token_ids) == 4


def test_one_token_answers_are_kept_too(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.run("a", prompts(44), max_tokens=1)
    assert stack.run("b", prompts(44), max_tokens=1).cached_tokens == 40


def test_an_id_in_use_is_refused(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    first = stack.submit("a", prompts(44), max_tokens=300)
    second = stack.submit("a", prompts(44)).wait()
    assert isinstance(second, Failed)
    stack.scheduler.abort("a")
    first.ended()


def test_an_id_whose_memory_is_still_lent_is_refused(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    stack = stacks(pool_cache(lend=True))
    stack.run("a", prompts(44))
    assert isinstance(stack.submit("a", prompts(44)).wait(), Failed)
    stack.cache.tell(Free("a"))
    assert stack.run("a", prompts(44)).reason == "length"


def test_a_request_that_fails_ends_alone(
    stacks: Stacks, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stacks()
    compute = stack.runner.prefill_chunk

    def sometimes(span: Any, ids: Any) -> Any:
        if ids[0] == 255:
            raise RuntimeError("no luck")
        return compute(span, ids)

    monkeypatch.setattr(stack.runner, "prefill_chunk", sometimes)
    bad, good = stack.submit("a", [255] * 9), stack.submit("b", prompts(9))
    last = bad.wait()
    assert isinstance(last, Failed)
    assert "no luck" in str(last.error)
    assert good.ended().reason == "length"


def test_a_listener_that_raises_harms_nobody(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    heard = stack.submit("a", prompts(9))
    heard.outputs.put = None  # its next call raises
    assert stack.run("b", prompts(9)).reason == "length"


def test_the_end_token_ends_the_answer(
    stacks: Stacks, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stacks()
    cold = stack.run("a", prompts(44))
    monkeypatch.setattr(stack.runner, "stop_ids", frozenset({cold.token_ids[1]}))
    ended = stack.run("b", prompts(44), ignore_eos=False)
    assert (ended.reason, ended.token_ids) == ("stop", cold.token_ids[:2])


def test_every_request_is_arrived_and_finished_once(
    stacks: Stacks, prompts: Prompts, pool_cache: Any
) -> None:
    stack = stacks(pool_cache())
    heard = [stack.submit(f"r{index}", prompts(20, index)) for index in range(4)]
    stack.scheduler.abort("r3")
    for one in heard:
        one.ended()
    for name in ("arrive", "finish"):
        assert sorted(call[1] for call in stack.cache.named(name)) == ["r0", "r1", "r2", "r3"]


def test_steps_are_reported_with_their_context(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    stack = stacks(pool_cache(), chunk_tokens=16)
    stack.run("a", prompts(40), max_tokens=2)
    seen = [(step.kind, step.tokens, step.context) for step in stack.cache.steps]
    assert seen == [("prefill", 16, 0), ("prefill", 16, 16), ("prefill", 8, 32), ("decode", 1, 40)]


def test_time_to_the_first_token_counts_from_arrival(stacks: Stacks, prompts: Prompts) -> None:
    ended = stacks().run("a", prompts(9))
    assert ended.ttft_seconds is not None
    assert 0 < ended.ttft_seconds < 60


def test_stopping_aborts_what_is_running(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    stack = stacks(pool_cache())
    heard = stack.submit("a", prompts(44), max_tokens=400)
    assert isinstance(heard.outputs.get(timeout=20), Written)
    stack.scheduler.stop()
    assert heard.ended().reason == "abort"
    assert stack.cache.closed


def test_a_stopped_scheduler_refuses(stacks: Stacks, prompts: Prompts) -> None:
    stack = stacks()
    stack.scheduler.stop()
    assert isinstance(stack.submit("a", prompts(9)).wait(), Failed)


def test_loads_larger_than_the_memory_are_not_tried(
    stacks: Stacks, prompts: Prompts, pool_cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: dict[bytes, bytes] = {}
    cold = stacks(pool_cache(pool)).run("a", prompts(44))
    stack = stacks(pool_cache(pool), blocks=2)
    hit = stack.run("b", prompts(44))
    assert (hit.token_ids, hit.cached_tokens) == (cold.token_ids, 16)


def test_the_last_word_carries_the_caches_record(stacks: Stacks, prompts: Prompts, pool_cache: Any) -> None:
    ended = stacks(pool_cache()).run("a", prompts(9))
    assert isinstance(ended, Ended)
    assert ended.decision == {"rid": "a", "aborted": False}
