"""The figures of a demo with vLLM, and the checks that it stands or falls by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...outcomes import HITS, Outcome
from ...runs.decisions import DecisionRecord
from ...runs.demo_summary import Arm
from ...runs.distribution import quantile, worst
from ...runs.vllm_demo_summary import ARMS, VllmDemoSummary
from ..demo.replicas import Asked

__all__ = ["MOST_SHARE", "summarise"]

MOST_SHARE = 0.1
"""Most of a cold prefill that a hit from the pool may take, by the medians."""


def summarise(
    *,
    model: str,
    plan: str,
    vllm: str,
    asked: Sequence[Asked],
    prefilled: Sequence[DecisionRecord],
    metrics: Mapping[str, Mapping[str, float]],
    unpublished_blocks: int,
) -> VllmDemoSummary:
    """All figures and checks.

    `asked` is every question of the run, at least one; `prefilled` are requests that only computed a prompt
    for the other server.
    """
    records = [*(a.record for a in asked), *prefilled]
    arms = {name: _arm([a.ttft_seconds for a in asked if a.arm == name]) for name in ARMS}
    differing = tuple(dict.fromkeys(_differing(asked)))
    first = asked[0].record
    cold, local, pool = (arms[name].p50_seconds for name in ("cold", "local", "pool"))
    return VllmDemoSummary(
        model=model,
        plan=plan,
        vllm=vllm,
        prompt_tokens=max(a.record.prompt_tokens for a in asked),
        block_tokens=first.block_tokens,
        bytes_per_token=first.bytes_per_token,
        arms=arms,
        loaded_tokens={name: sum(_loaded(a) for a in asked if a.arm == name) for name in ARMS},
        ledger=_ledger(records),
        reasons=_reasons(records),
        pool_minus_local_seconds=None if pool is None or local is None else pool - local,
        outputs_identical=not differing,
        differing=differing,
        metrics={name: dict(found) for name, found in metrics.items()},
        checks={
            "outputs_identical": not differing,
            "ledger_sums_to_prompts": all(sum(r.ledger.values()) == r.prompt_tokens for r in records),
            "everything_published": unpublished_blocks == 0,
            "pool_hit_at_most_a_tenth_of_cold": None not in (pool, cold)
            and (pool or 0.0) <= MOST_SHARE * (cold or 0.0),
            "every_arm_was_tried": all(arm.n for arm in arms.values()),
            "cold_loads_nothing": not any(map(_hits, _of(asked, "cold"))),
            "local_hits_are_local": all(a.record.path == "local_hit" for a in _of(asked, "local")),
            "pool_hits_come_from_the_pool": all(a.record.path == "pool_hit" for a in _of(asked, "pool")),
            "hand_offs_are_booked_as_such": all(
                a.record.path == "handoff" and a.record.ledger.get(Outcome.HANDOFF, 0) > 0
                for a in _of(asked, "handoff")
            ),
            "told_to_recompute_loads_nothing": not any(map(_hits, _of(asked, "told"))),
            "a_broken_block_ends_a_load_half_way": all(
                _loaded(a) > 0 and a.record.ledger.get(Outcome.CORRUPT, 0) > 0 for a in _of(asked, "broken")
            ),
            "a_killed_pool_is_survived": not any(map(_hits, _of(asked, "killed"))),
        },
    )


def _of(asked: Iterable[Asked], arm: str) -> list[Asked]:
    return [a for a in asked if a.arm == arm]


def _arm(values: Sequence[float]) -> Arm:
    high, is_max = worst(values)
    return Arm(n=len(values), p50_seconds=quantile(values, 0.5), p95_seconds=high, p95_is_max=is_max)


def _loaded(asked: Asked) -> int:
    ledger = asked.record.ledger
    return ledger.get(Outcome.POOL_HIT, 0) + ledger.get(Outcome.HANDOFF, 0)


def _hits(asked: Asked) -> int:
    """Tokens that were not computed, wherever they came from."""
    return sum(tokens for outcome, tokens in asked.record.ledger.items() if outcome in HITS)


def _differing(asked: Iterable[Asked]) -> Iterable[str]:
    """Questions that did not always get the same answer, whichever way the prompt became ready."""
    answers: dict[str, str] = {}
    for a in asked:
        if answers.setdefault(a.question, a.text) != a.text:
            yield a.question


def _ledger(records: Iterable[DecisionRecord]) -> dict[str, int]:
    total: dict[str, int] = {"prompt_tokens": 0}
    for record in records:
        for outcome, tokens in record.ledger.items():
            total[outcome.value] = total.get(outcome.value, 0) + tokens
        total["prompt_tokens"] += record.prompt_tokens
    return total


def _reasons(records: Iterable[DecisionRecord]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        if record.decision is not None:
            reason = record.decision.reason.value
            found[reason] = found.get(reason, 0) + 1
    return found
