"""The demo's figures as text: distributions, ledger, turn, policies, loss, and three sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..runs.demo_summary import DemoSummary
from ..units import format_bytes
from .decisions import seconds

__all__ = ["render"]

_ARM_NAMES = {
    "cold": "cold prefill",
    "local_hit": "local hit",
    "pool_hit": "pool hit",
    "declined": "declined",
    "fallback": "fallback",
}


def render(summary: DemoSummary) -> Iterator[str]:
    """The lines of the report, without colours: they read the same in a file."""
    yield "Time to first token, by how the prompt became ready"
    rows: list[tuple[str, ...]] = [("", "n", "p50", "p95")]
    for name, arm in summary.arms.items():
        worst = seconds(arm.p95_seconds) + (" (max)" if arm.p95_is_max and arm.n else "")
        rows.append((_ARM_NAMES[name], str(arm.n), seconds(arm.p50_seconds), worst))
    yield from _table(rows)
    yield ""
    total = summary.ledger["prompt_tokens"]
    yield f"Where every prompt token came from (they sum to {total:,})"
    rows = [
        (outcome.replace("_", " "), f"{tokens:,}", f"{tokens / total:6.1%}")
        for outcome, tokens in sorted(summary.ledger.items(), key=lambda item: -item[1])
        if outcome != "prompt_tokens"
    ]
    yield from _table(rows)
    yield ""
    yield "The bandwidth at which the rule turns to recompute"
    rows = [("replica", "predicted", "still loaded at", "recomputed at", "within a step")]
    for flip in summary.flips:
        step = summary.flip["step"] or 1.0
        low, high = flip["declined_at"], flip["accepted_at"]
        within = low is not None and high is not None
        within = within and low / step <= flip["predicted_bytes_per_second"] <= high * step
        rows.append(
            (
                flip["replica"],
                _rate(flip["predicted_bytes_per_second"]),
                _rate(high),
                _rate(low),
                "yes" if within else "NO",
            )
        )
    yield from _table(rows)
    yield ""
    yield "Unseen bandwidths and prompts, nothing retuned"
    rows = [("policy", "requests", "total", "lost by wrong decisions")]
    for name, policy in summary.policies.items():
        rows.append((name, str(policy.n), seconds(policy.total_seconds), seconds(policy.lost_seconds)))
    yield from _table(rows)
    errors = summary.prediction
    yield (
        f"  prediction error over {errors['decisions']} decisions by the rule: load "
        f"{_percent(errors['load_error_median'])} (p95 {_percent(errors['load_error_p95'])}), recompute "
        f"{_percent(errors['recompute_error_median'])} (p95 {_percent(errors['recompute_error_p95'])})"
    )
    if summary.pool_killed is not None:
        killed = summary.pool_killed
        yield ""
        yield "The pool was lost in the middle of a load"
        yield (
            f"  {killed['recomputed']} of {killed['requests']} requests finished by recompute, with "
            f"{'the same' if killed['outputs_identical'] else 'DIFFERENT'} answers; "
            + (
                f"loads resumed by themselves (try {killed['tries']})"
                if killed["recovered"]
                else "loads did NOT resume"
            )
        )
    yield ""
    moved = summary.bytes
    yield (
        f"Bytes published {format_bytes(moved['published'])}, read {format_bytes(moved['read'])}, "
        f"published and never read {format_bytes(moved['never_read'])}"
    )
    same = "the same tokens in all arms" if summary.outputs_identical else "DIFFERENT tokens"
    yield f"Greedy answers: {same}" + (f": {', '.join(summary.differing)}" if summary.differing else "")
    failed = [name for name, held in summary.checks.items() if not held]
    yield "Checks: all held" if not failed else f"Checks that did NOT hold: {', '.join(failed)}"
    yield ""
    yield from summary.sentences


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f} MB/s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
