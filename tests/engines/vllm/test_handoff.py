"""A prefill on one replica and the answer on another, through kv_transfer_params."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from .conftest import Trio, prompt_for
from .replicas import Replica

TOKENS = 300
Make = Callable[..., Replica]


def prefill(replica: Replica, prompt: list[int]) -> Mapping[str, Any]:
    """The kv_transfer_params for whoever decodes."""
    rid = replica.send(prompt, answer_tokens=1, transfer={"do_remote_decode": True})
    done: dict[str, Any] = {}
    while rid not in done:
        done |= replica.step()
    found: Mapping[str, Any] = done[rid].kv_transfer_params
    return found


def test_what_was_computed_elsewhere_is_booked_as_handed_over(trio: Trio) -> None:
    prompt = prompt_for("handed", TOKENS)
    params = prefill(trio.a, prompt)
    assert params["kvferry"] == {"handoff_tokens": 288}
    trio.a.settle()
    answer = trio.b.ask(prompt, transfer=params)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"handoff": 288, "partial_block": 12}
    assert answer.record is not None
    assert answer.record.path == "handoff"


def test_it_is_published_though_nobody_asked_for_it_before(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("first-touch", TOKENS)
    giver = replica({"pool": trio.url, "publish": "second-touch"})
    params = prefill(giver, prompt)
    giver.settle()
    assert trio.b.ask(prompt, transfer=params).ledger["handoff"] == 288


def test_the_decoding_side_waits_for_what_is_still_being_published(trio: Trio) -> None:
    prompt = prompt_for("under-way", TOKENS)
    params = prefill(trio.a, prompt)
    rid = trio.b.send(prompt, transfer=params)
    for _ in range(50):
        trio.b.step()
    # Only now does the giving side make the step in which it publishes.
    trio.a.settle()
    (answer,) = trio.b.wait([rid])
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger["handoff"] == 288


def test_what_never_comes_is_computed(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("never-came", TOKENS)
    taker = replica({"pool": trio.url, "timeouts": {"handoff": "200ms"}})
    answer = taker.ask(prompt, transfer={"do_remote_prefill": True}, fields={"handoff_tokens": 288})
    assert answer.agrees_with(trio.truth(prompt))
    assert "handoff" not in answer.ledger
    assert sum(answer.ledger.values()) == TOKENS
