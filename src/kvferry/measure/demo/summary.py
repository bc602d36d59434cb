"""The figures of a demo run, computed from what its replicas recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...gate.facts import Reason
from ...planner.verdict import demo_sentence
from ...runs.decisions import DecisionRecord
from ...runs.demo_summary import ARMS, Arm, DemoSummary, Policy, is_free_choice
from ...runs.distribution import quantile, worst
from .losing import Loss
from .policies import POLICIES, Comparison
from .replicas import Asked
from .turning import Turn

__all__ = ["summarise"]


def summarise(
    *,
    model: str,
    plan: str,
    asked: Sequence[Asked],
    turns: Sequence[Turn],
    comparisons: Sequence[Comparison],
    loss: Loss | None,
    published_bytes: int,
) -> DemoSummary:
    """All figures and checks. `asked` is every request of the run, in order of their ends."""
    first = asked[0].record
    arms = _arms(asked)
    differing = tuple(_differing(asked))
    ledger = _ledger(a.record for a in asked)
    policies = {
        ("gate" if policy == "rule" else policy): Policy(
            total_seconds=sum(c.by_policy[policy].ttft_seconds for c in comparisons),
            lost_seconds=sum(c.by_policy[policy].record.lost_seconds for c in comparisons),
            n=len(comparisons),
        )
        for policy in POLICIES
    }
    turn = turns[-1]
    killed = None
    if loss is not None:
        names = {a.question for a in (loss.cut_off, *loss.after)}
        killed = {
            "recomputed": loss.recomputed,
            "requests": 1 + len(loss.after),
            "outputs_identical": not names & set(differing),
            "recovered": loss.resumed is not None,
            "tries": loss.tries,
        }
    books = all(sum(a.record.ledger.values()) == a.record.prompt_tokens for a in asked)
    counted = _bytes(asked)
    checks: dict[str, bool] = {
        "outputs_identical": not differing,
        "ledger_sums_to_prompts": books,
        "flip_within_a_step": all(t.within_a_step for t in turns),
        "pool_hits_beat_cold": _less(arms["pool_hit"].p95_seconds, arms["cold"].p50_seconds),
        "gate_no_worse_than_best_fixed": policies["gate"].total_seconds
        <= 1.15 * min(policies["always"].total_seconds, policies["never"].total_seconds),
    }
    if killed is not None and loss is not None:
        checks["survived_loss"] = bool(killed["outputs_identical"]) and loss.recomputed == 1 + len(loss.after)
        checks["recovered"] = loss.resumed is not None
    return DemoSummary(
        model=model,
        plan=plan,
        block_tokens=first.block_tokens,
        bytes_per_token=first.bytes_per_token,
        arms=arms,
        ledger=ledger,
        outputs_identical=not differing,
        differing=differing,
        flip={
            "predicted_bytes_per_second": turn.predicted,
            "accepted_at": turn.accepted_at,
            "declined_at": turn.declined_at,
            "within_a_step": turn.within_a_step,
            "step": turn.step,
        },
        flips=tuple(
            {
                "replica": t.replica,
                "predicted_bytes_per_second": t.predicted,
                "accepted_at": t.accepted_at,
                "declined_at": t.declined_at,
                "tried": [{"bytes_per_second": rate, "loaded": loads} for rate, loads in t.tried],
            }
            for t in turns
        ),
        policies=policies,
        prediction=_prediction([a for a in asked if a.arm in ("turn", "policy rule")]),
        pool_killed=killed,
        bytes={"published": published_bytes, **counted},
        checks=checks,
        sentences=_sentences(arms, turn, policies, asked),
    )


def _arms(asked: Sequence[Asked]) -> dict[str, Arm]:
    values: dict[str, list[float]] = {name: [] for name in ARMS}
    for a in asked:
        path = a.record.path
        if path in values and is_free_choice(path, a.arm):
            values[path].append(a.ttft_seconds)
    return {name: _arm(found) for name, found in values.items()}


def _arm(values: Sequence[float]) -> Arm:
    high, is_max = worst(values)
    return Arm(n=len(values), p50_seconds=quantile(values, 0.5), p95_seconds=high, p95_is_max=is_max)


def _differing(asked: Sequence[Asked]) -> Iterable[str]:
    answers: dict[str, tuple[int, ...]] = {}
    for a in asked:
        if answers.setdefault(a.question, a.token_ids) != a.token_ids:
            yield a.question


def _ledger(records: Iterable[DecisionRecord]) -> dict[str, int]:
    total: dict[str, int] = {}
    for record in records:
        for outcome, tokens in record.ledger.items():
            total[outcome.value] = total.get(outcome.value, 0) + tokens
        total["prompt_tokens"] = total.get("prompt_tokens", 0) + record.prompt_tokens
    return total


def _bytes(asked: Sequence[Asked]) -> dict[str, int]:
    """Bytes read, and bytes of published blocks that nobody read by the end of the run."""
    block = asked[0].record.block_tokens * asked[0].record.bytes_per_token
    published: set[str] = set()
    read: set[str] = set()
    read_bytes = 0
    for a in asked:
        keys = a.record.keys
        for start, stop in a.record.published:
            published.update(keys[start:stop])
        for load in a.record.loads:
            read.update(keys[load.start_block : load.start_block + load.good_blocks])
            read_bytes += load.bytes
    return {"read": read_bytes, "never_read": len(published - read) * block}


def _prediction(asked: Sequence[Asked]) -> dict[str, float | int | None]:
    """How far predictions lay from what happened, as |actual / predicted - 1|, and what wrong ones cost."""
    errors: dict[str, list[float]] = {"load": [], "recompute": []}
    lost = 0.0
    for a in asked:
        decision, actual = a.record.decision, a.record.actual
        lost += a.record.lost_seconds
        if decision is None or decision.candidate_bytes == 0 or a.record.fallback is not None:
            continue
        if decision.reason is Reason.UNMEASURED:
            continue
        if decision.loads and actual.load_seconds is not None and decision.load_median_seconds > 0.0:
            predicted = decision.load_median_seconds - (
                a.record.facts.lookup_seconds if a.record.facts else 0.0
            )
            errors["load"].append(abs(actual.load_seconds / max(predicted, 1e-9) - 1.0))
        elif not decision.loads and actual.recompute_seconds and decision.recompute_seconds > 0.0:
            errors["recompute"].append(abs(actual.recompute_seconds / decision.recompute_seconds - 1.0))
    return {
        "decisions": len(asked),
        "load_error_median": quantile(errors["load"], 0.5),
        "load_error_p95": quantile(errors["load"], 0.95),
        "recompute_error_median": quantile(errors["recompute"], 0.5),
        "recompute_error_p95": quantile(errors["recompute"], 0.95),
        "lost_seconds": lost,
    }


def _less(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a < b


def _sentences(
    arms: Mapping[str, Arm], turn: Turn, policies: Mapping[str, Policy], asked: Sequence[Asked]
) -> tuple[str, ...]:
    cold, pool = arms["cold"], arms["pool_hit"]
    saved = sum(
        max(0.0, a.record.decision.recompute_seconds - (a.record.actual.load_seconds or 0.0))
        for a in asked
        if a.record.path == "pool_hit" and a.record.decision is not None and a.arm == "pool"
    )
    slow = turn.predicted / 1e6
    gate, always, never = (policies[name].total_seconds for name in ("gate", "always", "never"))
    found = (
        f"Sharing saved {saved:.0f} s of prefill over {pool.n} hits: the first token came after "
        f"{_s(pool.p50_seconds)} instead of {_s(cold.p50_seconds)} (medians)."
        if pool.n
        else "Sharing saved nothing: nothing was loaded from the pool."
    )
    return (
        found,
        f"It would have cost on a link slower than about {slow:.1f} MB/s: at bandwidths drawn around that, "
        f"always loading took {always:.0f} s, never loading {never:.0f} s, and the gate {gate:.0f} s.",
        demo_sentence(turn.predicted),
    )


def _s(seconds: float | None) -> str:
    return "nothing" if seconds is None else f"{seconds:.2f} s"
