"""The figures of a demo with vLLM: each check fails for its own reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvferry.gate.facts import GateTerms
from kvferry.measure.demo.replicas import Asked
from kvferry.measure.vllm.summary import summarise
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord
from kvferry.runs.vllm_demo_summary import ARMS

_LEDGERS = {
    "cold": {Outcome.NEVER_PUBLISHED: 100},
    "local": {Outcome.DEVICE_HIT: 100},
    "pool": {Outcome.POOL_HIT: 100},
    "told": {Outcome.DECLINED: 100},
    "handoff": {Outcome.HANDOFF: 96, Outcome.PARTIAL_BLOCK: 4},
    "broken": {Outcome.POOL_HIT: 40, Outcome.CORRUPT: 60},
    "killed": {Outcome.FAILED: 100},
}
_PATHS = {"cold": "cold", "local": "local_hit", "pool": "pool_hit", "handoff": "handoff", "told": "declined"}
_SECONDS = {"local": 0.1, "pool": 0.2}


def asked(
    arm: str,
    *,
    text: str = "answer",
    ledger: dict[Outcome, int] | None = None,
    path: str | None = None,
    seconds: float | None = None,
) -> Asked:
    return Asked(
        arm=arm,
        question="heapq/0",
        request_id=f"A-{arm}",
        replica="A",
        ttft_seconds=_SECONDS.get(arm, 10.0) if seconds is None else seconds,
        total_seconds=11.0,
        token_ids=(),
        text=text,
        record=DecisionRecord(
            version=SCHEMA_VERSION,
            request_id=f"A-{arm}",
            replica="A",
            arrival=1.0,
            tenant_class="default",
            mode="on",
            path=path or _PATHS.get(arm, "fallback"),
            prompt_tokens=100,
            block_tokens=32,
            bytes_per_token=10,
            terms=GateTerms(),
            ledger=_LEDGERS[arm] if ledger is None else ledger,
            actual=Actual(),
        ),
    )


def failed(requests: list[Asked], unpublished: int = 0) -> list[str]:
    summary = summarise(
        model="m",
        plan="quick",
        vllm="vllm 1",
        asked=requests,
        prefilled=(),
        metrics={},
        unpublished_blocks=unpublished,
    )
    return [name for name, held in summary.checks.items() if not held]


def good() -> list[Asked]:
    return [asked(arm) for arm in ARMS]


def test_a_good_run_holds() -> None:
    assert failed(good()) == []


def test_another_answer_is_seen() -> None:
    assert failed([*good(), asked("pool", text="other")]) == ["outputs_identical"]


def test_a_token_that_is_booked_nowhere_is_seen() -> None:
    assert failed([*good(), asked("cold", ledger={Outcome.NEVER_PUBLISHED: 99})]) == [
        "ledger_sums_to_prompts"
    ]


def test_blocks_that_never_arrive_are_seen() -> None:
    assert failed(good(), unpublished=3) == ["everything_published"]


@pytest.mark.parametrize(
    ("arm", "changes", "check"),
    [
        ("pool", {"seconds": 1.1}, "pool_hit_at_most_a_tenth_of_cold"),
        ("cold", {"ledger": {Outcome.POOL_HIT: 100}}, "cold_loads_nothing"),
        ("local", {"path": "cold"}, "local_hits_are_local"),
        ("pool", {"path": "fallback"}, "pool_hits_come_from_the_pool"),
        ("told", {"ledger": {Outcome.POOL_HIT: 100}}, "told_to_recompute_loads_nothing"),
        ("broken", {"ledger": {Outcome.POOL_HIT: 100}}, "a_broken_block_ends_a_load_half_way"),
        ("broken", {"ledger": {Outcome.CORRUPT: 100}}, "a_broken_block_ends_a_load_half_way"),
        ("killed", {"ledger": {Outcome.POOL_HIT: 100}}, "a_killed_pool_is_survived"),
    ],
)
def test_an_arm_that_went_another_way_is_seen(arm: str, changes: dict[str, object], check: str) -> None:
    make: Callable[..., Asked] = asked
    requests = [a for a in good() if a.arm != arm]
    assert failed([*requests, make(arm, **changes)]) == [check]


@pytest.mark.parametrize("arm", ["told", "broken", "killed", "local", "cold", "pool"])
def test_an_arm_that_was_never_tried_is_no_success(arm: str) -> None:
    assert failed([a for a in good() if a.arm != arm]) != []


def test_the_cost_over_a_local_hit_is_the_difference_of_medians() -> None:
    summary = summarise(
        model="m", plan="quick", vllm="vllm 1", asked=good(), prefilled=(), metrics={}, unpublished_blocks=0
    )
    assert summary.pool_minus_local_seconds == pytest.approx(0.1)


def test_prompts_computed_for_the_other_server_are_booked_too() -> None:
    prefilled = [asked("cold").record]
    summary = summarise(
        model="m",
        plan="quick",
        vllm="vllm 1",
        asked=good(),
        prefilled=prefilled,
        metrics={},
        unpublished_blocks=0,
    )
    assert summary.ledger["prompt_tokens"] == 100 * (len(ARMS) + 1)
    assert summary.ledger["never_published"] == 200
    assert summary.arms["cold"].n == 1


def test_a_prefill_that_is_booked_nowhere_is_seen() -> None:
    lost = asked("cold", ledger={}).record
    summary = summarise(
        model="m",
        plan="quick",
        vllm="vllm 1",
        asked=good(),
        prefilled=[lost],
        metrics={},
        unpublished_blocks=0,
    )
    assert not summary.checks["ledger_sums_to_prompts"]
