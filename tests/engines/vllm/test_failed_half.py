"""The scheduler's half of the connector raises, at each of its hooks: the engine goes on as plain vLLM.

Blocks that were kept for publications are the engine's again, and not before nobody reads them: what the pool
holds afterwards is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from kvferry.engines.vllm.schedulerside import SchedulerSide

from .conftest import Trio, prompt_for, revive
from .faulty import Fault
from .replicas import Replica

TOKENS = 200
HOOKS = ("arrive", "matched", "allocated", "sources", "planned", "reported", "finished", "pending", "renew")
ORDERING = ("allocated", "planned", "reported", "finished")
"""Hooks that leave something behind when they raise at their end."""
INSIDE = ("begin", "news", "passed", "computed", "passed_over", "finish")


class Mistake(Exception):
    """Something of ours that nobody has thought of."""


def fails(replica: Replica, hook: str, *, late: bool) -> list[str]:
    """The half raises once in this hook, before or after its work; what has raised so far."""
    side = replica.connector._scheduler
    original = getattr(SchedulerSide, hook)
    raised: list[str] = []

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        if late:
            original(self, *args, **kwargs) if callable(original) else original.fget(self)
        raised.append(hook)
        raise Mistake(hook)

    member = broken if callable(original) else property(broken)
    side.__class__ = type("Broken", (SchedulerSide,), {hook: member})
    return raised


def fails_inside(replica: Replica, call: str) -> list[str]:
    """What the half calls raises: halfway through one of its hooks."""
    ferry = replica.connector._scheduler._ferry
    raised: list[str] = []

    def broken(*_: Any, **__: Any) -> Any:
        raised.append(call)
        raise Mistake(call)

    setattr(ferry, call, broken)
    return raised


@pytest.fixture
def victim(trio: Trio) -> Iterator[Replica]:
    """A replica that lives on after the test."""
    yield trio.b
    trio.pool.heal()
    revive(trio.b)


def play(trio: Trio, break_it: Callable[[], list[str]]) -> None:
    """One request that loads, and one that is published, while an earlier publication is under way."""
    b = trio.b
    held, lent, fresh, further = (prompt_for("half", TOKENS) for _ in range(4))
    trio.published(held)
    trio.pool.put_seconds = 0.15
    assert b.ask(lent).agrees_with(trio.truth(lent))
    assert len(b.connector._kept) > 0
    raised = break_it()
    ids = [b.send(held), b.send(fresh)]
    for prompt, answer in zip((held, fresh), b.wait(ids), strict=True):
        assert answer.agrees_with(trio.truth(prompt))
    # An engine that shows no statistics, is not idle or never reset calls these not at all.
    b.connector.get_external_cache_hit_sources(SimpleNamespace(request_id="r"), 32)
    b.connector.has_pending_push_work()
    b.connector.reset_cache()
    assert len(raised) == 1
    assert b.connector.why_off.startswith("Mistake")
    b.settle()
    assert len(b.connector._kept) == 0
    assert b.ask(held).agrees_with(trio.truth(held)), "the local cache is poisoned"
    plain = b.ask(further)
    assert plain.agrees_with(trio.truth(further))
    assert (plain.cached, plain.record) == (0, None)
    trio.pool.heal()
    for prompt in (held, lent, fresh):
        assert trio.c.ask(prompt).agrees_with(trio.truth(prompt)), "the pool is poisoned"


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises(trio: Trio, victim: Replica, hook: str) -> None:
    play(trio, lambda: fails(victim, hook, late=False))


@pytest.mark.parametrize("hook", ORDERING)
def test_a_hook_that_raises_when_its_work_is_done(trio: Trio, victim: Replica, hook: str) -> None:
    play(trio, lambda: fails(victim, hook, late=True))


@pytest.mark.parametrize("call", INSIDE)
def test_a_hook_that_raises_halfway(trio: Trio, victim: Replica, call: str) -> None:
    play(trio, lambda: fails_inside(victim, call))


def test_a_half_that_cannot_be_built(trio: Trio, victim: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.engines.vllm import connector

    def broken(*_: Any) -> Any:
        raise Mistake("built")

    terms = victim.connector._terms
    with monkeypatch.context() as patch:
        patch.setattr(connector, "build_scheduler_side", broken)
        revive(victim)
    prompt = prompt_for("unbuilt", TOKENS)
    answer = victim.ask(prompt)
    victim.connector._terms = terms
    assert answer.agrees_with(trio.truth(prompt))
    assert (answer.cached, answer.record) == (0, None)
    assert victim.connector.why_off == "Mistake: built"


def test_a_block_that_is_read_is_kept_until_it_has_been(trio: Trio, victim: Replica) -> None:
    """Given back at once, it would be published with what another request has written since."""
    prompt = prompt_for("read", TOKENS)
    trio.pool.put_seconds = 0.6
    victim.ask(prompt)
    fails(victim, "arrive", late=False)
    kept = len(victim.connector._kept)
    assert kept > 0
    rid = victim.send(prompt_for("next", 40), answer_tokens=1)
    assert victim.connector.why_off
    assert len(victim.connector._kept) == kept
    victim.wait([rid])
    victim.settle()
    assert len(victim.connector._kept) == 0
    trio.pool.heal()
    assert trio.c.ask(prompt).agrees_with(trio.truth(prompt))


def test_an_idle_engine_makes_steps_until_its_blocks_are_back(trio: Trio, victim: Replica) -> None:
    trio.pool.put_seconds = 0.3
    victim.ask(prompt_for("idle", TOKENS))
    fails(victim, "pending", late=False)
    for _ in range(100_000):
        if not victim.connector.has_pending_push_work():
            break
        victim.step()
    assert victim.pool.get_num_free_blocks() == victim.free_at_start


def test_a_load_under_way_when_the_half_fails_ends_by_itself(trio: Trio, victim: Replica) -> None:
    prompt = prompt_for("under way", TOKENS)
    keys = trio.published(prompt)
    with trio.pool.failing(keys[3], Fault.HANGS):
        rid = victim.send(prompt, fields={"deadline_seconds": 1.0})
        for _ in range(100_000):
            if trio.pool.reading.is_set():
                break
            victim.step()
        fails(victim, "reported", late=False)
        (answer,) = victim.wait([rid])
    assert answer.agrees_with(trio.truth(prompt))
    victim.settle()
    assert victim.ask(prompt).agrees_with(trio.truth(prompt))
