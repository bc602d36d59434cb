"""Loads that fail, at every place and in every way: the answer is right, and nothing wrong is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from kvferry.store.valkey import EmbeddedServer

from .conftest import Trio, Truth, prompt_for, step_until
from .faulty import Fault
from .replicas import Replica

TOKENS, BLOCKS = 300, 9
PLACES = {"first": 0, "middle": 4, "last": BLOCKS - 1}
CAUSES = {
    Fault.ABSENT: "evicted",
    Fault.CORRUPT: "corrupt",
    Fault.FAILED: "failed",
    Fault.UNAVAILABLE: "failed",
    Fault.RAISES: "failed",
    Fault.HANGS: "late",
    Fault.OVERRUNS: "late",
}
SLOW = (Fault.HANGS, Fault.OVERRUNS)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_load_that_fails_is_recomputed_from_there(trio: Trio, fault: Fault, place: str) -> None:
    """Traps 2 and 3: no loop at block 0; nothing that was computed on a bad block is kept or published."""
    prompt, at = prompt_for(fault.name, TOKENS), PLACES[place]
    keys = trio.published(prompt)
    with trio.pool.failing(keys[at], fault):
        answer = trio.b.ask(prompt, fields={"deadline_seconds": 1.0} if fault in SLOW else None)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.record is not None
    assert answer.record.path == "fallback", answer.record
    assert answer.ledger.get("pool_hit", 0) in (32 * at, 0)
    assert answer.ledger[CAUSES[fault]] > 0
    trio.sound(prompt)


def test_a_load_that_overruns_its_time_writes_nothing_any_more(trio: Trio) -> None:
    """The engine has given the blocks to others by then."""
    prompt, other = prompt_for("overrun", TOKENS), prompt_for("owner", TOKENS)
    keys = trio.published(prompt)
    with trio.pool.failing(keys[2], Fault.OVERRUNS):
        first = trio.b.ask(prompt, fields={"deadline_seconds": 0.3})
        assert first.agrees_with(trio.truth(prompt))
        rid = trio.b.send(other, answer_tokens=40)
        for _ in range(5):
            trio.b.step()
        trio.pool.let_go.set()
        assert trio.pool.overran.wait(5.0)
        (second,) = trio.b.wait([rid])
    assert second.agrees_with(trio.truth(other, 40))
    trio.sound(prompt, other)


def test_an_aborted_request_ends_its_load(trio: Trio) -> None:
    """An aborted request must still be reported to the engine, or its blocks are never free."""
    prompt = prompt_for("abort", TOKENS)
    keys = trio.published(prompt)
    with trio.pool.failing(keys[3], Fault.HANGS):
        rid = trio.b.send(prompt)
        step_until(trio.b, trio.pool.reading.is_set)
        trio.b.abort(rid)
        trio.b.settle()
    (record,) = (record for record in trio.b.records() if record.request_id.startswith(rid))
    assert record.aborted
    assert record.ledger == {"aborted": TOKENS}
    trio.sound(prompt)


def test_a_request_aborted_before_its_look_up_has_ended(trio: Trio) -> None:
    prompt = prompt_for("abort early", TOKENS)
    trio.published(prompt)
    rid = trio.b.send(prompt)
    trio.b.abort(rid)
    trio.b.settle()
    trio.sound(prompt)


def test_a_request_aborted_in_the_middle_of_its_answer(trio: Trio) -> None:
    prompt = prompt_for("abort late", TOKENS)
    trio.published(prompt)
    rid = trio.b.send(prompt, answer_tokens=200)
    step_until(trio.b, lambda: any(r.num_output_tokens > 3 for r in trio.b.scheduler.running))
    trio.b.abort(rid)
    trio.b.settle()
    trio.sound(prompt)


@pytest.mark.parametrize("fault", [Fault.CORRUPT, Fault.HANGS], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("place", PLACES)
def test_trap_1_another_request_with_the_prefix_during_and_after_a_failed_load(
    trio: Trio, fault: Fault, place: str
) -> None:
    """Blocks are named in the local cache when they have arrived, and not when they are ordered."""
    prompt = prompt_for("shared", TOKENS)
    keys = trio.published(prompt)
    longer = [*prompt[:288], *prompt_for("tail", 60)]
    terms = {"fields": {"deadline_seconds": 1.0}}
    with trio.pool.failing(keys[PLACES[place]], fault):
        during = trio.b.ask_all([(prompt, terms), (longer, terms), (prompt, terms)])
    after = trio.b.ask(longer)
    assert during[0].agrees_with(trio.truth(prompt))
    assert during[1].agrees_with(trio.truth(longer))
    assert during[2].agrees_with(trio.truth(prompt))
    assert after.agrees_with(trio.truth(longer))
    trio.sound(prompt, longer)


def test_a_request_that_finds_the_prefix_computed_meanwhile(trio: Trio) -> None:
    """After a load that failed at block 0 the engine asks again, and by then holds blocks of its own."""
    prompt = prompt_for("meanwhile", TOKENS)
    keys = trio.published(prompt)
    with trio.pool.failing(keys[0], Fault.HANGS):
        waiting = trio.b.send(prompt, fields={"deadline_seconds": 1.5})
        step_until(trio.b, trio.pool.reading.is_set)
        quick = trio.b.ask(prompt, fields={"max_load_tokens": 0})
        (slow,) = trio.b.wait([waiting])
    assert quick.agrees_with(trio.truth(prompt))
    assert slow.agrees_with(trio.truth(prompt))
    trio.sound(prompt)


def test_a_block_damaged_in_the_pool_is_dropped_and_published_again(trio: Trio) -> None:
    prompt = prompt_for("damaged", TOKENS)
    keys = trio.published(prompt)
    trio.pool.damage(keys[4])
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"pool_hit": 128, "corrupt": 160, "partial_block": 12}
    trio.sound(prompt)


def test_these_tests_would_see_a_wrong_block(
    replica: Callable[..., Replica], trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without checksums the same damage gives another answer."""
    from kvferry.store import framed

    prompt = prompt_for("control", TOKENS)
    keys = trio.published(prompt)
    trio.pool.damage(keys[4])
    monkeypatch.setattr(framed, "flaw_of", lambda *_: None)
    answer = replica({"pool": trio.url}, role="kv_consumer").ask(prompt)
    assert answer.ledger == {"pool_hit": 288, "partial_block": 12}
    assert not answer.agrees_with(trio.truth(prompt))


def test_a_full_pool_takes_nothing_and_stops_nobody(trio: Trio) -> None:
    prompt = prompt_for("full", TOKENS)
    trio.pool.full = True
    assert trio.a.ask(prompt).agrees_with(trio.truth(prompt))
    trio.a.settle()
    assert trio.b.ask(prompt).ledger == {"never_published": 288, "partial_block": 12}
    trio.b.settle()
    assert len(trio.pool.keys()) == 0
    trio.sound(prompt)


def test_a_pool_that_does_not_answer_look_ups(trio: Trio) -> None:
    prompt = prompt_for("deaf", TOKENS)
    trio.published(prompt)
    trio.pool.deaf = True
    answer = trio.b.ask(prompt, fields={"deadline_seconds": 0.3})
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.record is not None
    assert answer.record.path == "fallback"
    trio.sound(prompt)


def test_two_replicas_publish_the_same_at_once(trio: Trio) -> None:
    """A lease lets one of them write; the other's blocks come back to it as well."""
    prompt = prompt_for("twice", TOKENS)
    trio.pool.put_seconds = 0.2
    first, second = trio.a.send(prompt), trio.b.send(prompt)
    for _ in range(4):
        trio.a.step()
        trio.b.step()
    (one,), (two,) = trio.a.wait([first]), trio.b.wait([second])
    assert one.agrees_with(two)
    for replica in (trio.a, trio.b):
        replica.settle()
    assert len(trio.pool.order) == len(set(trio.pool.order)) == BLOCKS
    trio.sound(prompt)


def test_a_request_whose_id_is_still_publishing_goes_without_the_cache(trio: Trio) -> None:
    prompt = prompt_for("names", TOKENS)
    trio.pool.put_seconds = 0.3
    answers = [trio.a.ask(prompt) for _ in range(3)]
    assert all(answer.agrees_with(trio.truth(prompt)) for answer in answers)
    trio.sound(prompt)


@pytest.fixture
def small(replica: Callable[..., Replica], trio: Trio) -> Replica:
    """A replica whose cache has room for little more than one request."""
    return replica({"pool": trio.url}, kv_cache_memory_bytes=20 * 32768, max_model_len=512, max_num_seqs=4)


@pytest.mark.parametrize("fault", [None, Fault.CORRUPT, Fault.HANGS], ids=str)
def test_requests_are_preempted_while_they_load_and_answer(
    small: Replica, trio: Trio, fault: Fault | None
) -> None:
    """A preempted request is asked about again, with other blocks of the engine's own."""
    prompts = [prompt_for("preempted", 200) for _ in range(4)]
    keys = [trio.published(prompt) for prompt in prompts]
    if fault is not None:
        trio.pool.reading.clear()
        trio.pool.let_go.clear()
        trio.pool.faults |= {keys[0][0]: fault, keys[2][3]: fault}
    ids = [small.send(p, answer_tokens=150, fields={"deadline_seconds": 1.5}) for p in prompts]
    preempted = False
    for _ in range(100_000):
        if not small.scheduler.has_unfinished_requests():
            break
        preempted = preempted or any(r.num_preemptions for r in small.scheduler.requests.values())
        for rid, output in small.step().items():
            expected = trio.truth(prompts[ids.index(rid)], 150)
            assert tuple(output.outputs[0].token_ids) == expected.tokens
    assert preempted
    assert not small.connector.why_off
    trio.pool.heal()
    small.settle()
    for prompt in prompts:
        assert small.ask(prompt).agrees_with(trio.truth(prompt))
    trio.sound(*prompts)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A real pool."""
    with EmbeddedServer(max_memory_bytes=64 << 20) as server:
        yield server


QUICK = {"connect": "500ms", "probe": "300ms", "load": "1s", "store": "1s", "lease": "1s"}
QUICK |= {"backoff_first": "10ms", "backoff_most": "50ms"}


def test_a_hung_pool_costs_one_time_limit_and_is_used_again(
    replica: Callable[..., Replica], server: EmbeddedServer, truth: Truth
) -> None:
    prompts = [prompt_for("hung", TOKENS) for _ in range(3)]
    a, b = (replica({"pool": server.url, "timeouts": QUICK}) for _ in range(2))
    for prompt in prompts:
        assert a.ask(prompt).agrees_with(truth(prompt))
    a.settle()
    assert b.ask(prompts[0]).ledger == {"pool_hit": 288, "partial_block": 12}
    b.forget()

    server.pause()
    unanswered = b.ask(prompts[0])
    other = a.ask(prompt_for("hung too", TOKENS))
    assert unanswered.agrees_with(truth(prompts[0]))
    assert unanswered.record is not None
    assert unanswered.record.path == "fallback"
    assert other.record is not None
    server.resume()
    b.forget()
    _back(b, prompts[1], truth)

    b.forget()
    b.connector._scheduler.controls.change({"pool.bytes_per_second": 400_000.0})
    rid = b.send(prompts[2])
    step_until(b, lambda: bool(b.worker._worker._operations))
    server.pause()
    (cut,) = b.wait([rid])
    assert cut.agrees_with(truth(prompts[2]))
    assert cut.record is not None
    assert cut.record.path == "fallback"
    server.resume()
    b.connector._scheduler.controls.change({"pool.bytes_per_second": None})
    for one in (a, b):
        one.settle()
        assert not one.connector.why_off
    b.forget()
    _back(b, prompts[2], truth)


def test_a_pool_that_dies_and_comes_back_empty(
    replica: Callable[..., Replica], server: EmbeddedServer, truth: Truth
) -> None:
    prompt = prompt_for("dead", TOKENS)
    a, b = (replica({"pool": server.url, "timeouts": QUICK}) for _ in range(2))
    a.ask(prompt)
    a.settle()
    server.kill()
    assert b.ask(prompt).agrees_with(truth(prompt))
    server.start()
    for one in (a, b):
        one.settle()
    a.forget()
    b.forget()
    for _ in range(20):
        assert a.ask(prompt).agrees_with(truth(prompt))
        a.forget()
        if b.ask(prompt).cached:
            break
        b.forget()
    b.forget()
    _back(b, prompt, truth)


def _back(replica: Replica, prompt: list[int], truth: Truth) -> None:
    """The pool serves again, after a back-off at most."""
    for _ in range(40):
        answer = replica.ask(prompt)
        assert answer.agrees_with(truth(prompt))
        if answer.ledger.get("pool_hit") == 288:
            return
        replica.forget()
    raise AssertionError(f"the pool is not used again: {answer.record}")


def test_trap_4_a_failed_load_ends_no_request(trio: Trio, replica: Callable[..., Replica]) -> None:
    """With vLLM's own default a failed load fails its request: the connector is off then."""
    prompt = prompt_for("policy", TOKENS)
    keys = trio.published(prompt)
    with trio.pool.failing(keys[0], Fault.CORRUPT):
        answer = replica({"pool": trio.url}, policy="fail").ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    trio.sound(prompt)


def test_trap_5_a_load_equals_a_local_hit_bit_for_bit(replica: Callable[..., Replica], trio: Trio) -> None:
    """In bfloat16 it need not equal a recompute, whose sums run in another order."""
    prompt = prompt_for("bits", TOKENS)
    a, b = (replica({"pool": trio.url}, dtype="bfloat16") for _ in range(2))
    a.ask(prompt)
    local = a.ask(prompt)
    a.settle()
    loaded = b.ask(prompt)
    assert local.ledger["device_hit"] == loaded.ledger["pool_hit"] == 288
    assert (loaded.tokens, loaded.logprobs) == (local.tokens, local.logprobs)
