"""`kvferry demo --engine vllm`: two real vLLM servers share a KV cache, told while it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..report.decisions import seconds
from ..runs.vllm_demo_summary import VllmDemoSummary
from ..units import format_bytes

__all__ = ["render"]

_ARMS = {
    "cold": "cold prefill",
    "local": "local hit",
    "pool": "pool hit",
    "handoff": "handed over",
    "told": "told to recompute",
    "broken": "load fails half-way",
    "killed": "pool killed",
}


def render(summary: VllmDemoSummary) -> Iterator[str]:
    """The lines of the report, without colours: they read the same in a file."""
    block = summary.bytes_per_token * summary.block_tokens
    yield (
        f"{summary.vllm}, {summary.model} in float32, prompts of up to {summary.prompt_tokens:,} tokens "
        f"({format_bytes(block)} for each block of {summary.block_tokens})"
    )
    yield ""
    yield "Time to first token, by what was done"
    rows: list[tuple[str, ...]] = [("", "n", "p50", "p95", "loaded tokens")]
    for name, arm in summary.arms.items():
        worst = seconds(arm.p95_seconds) + (" (max)" if arm.p95_is_max and arm.n else "")
        rows.append(
            (
                _ARMS[name],
                str(arm.n),
                seconds(arm.p50_seconds),
                worst,
                f"{summary.loaded_tokens[name] // max(1, arm.n):,}",
            )
        )
    yield from _table(rows)
    if summary.pool_minus_local_seconds is not None:
        yield f"  a pool hit takes {seconds(summary.pool_minus_local_seconds)} more than a local one"
    yield ""
    total = summary.ledger["prompt_tokens"]
    yield f"Where every prompt token came from (they sum to {total:,})"
    rows = [
        (outcome.replace("_", " "), f"{tokens:,}", f"{tokens / total:6.1%}")
        for outcome, tokens in sorted(summary.ledger.items(), key=lambda item: -item[1])
        if outcome != "prompt_tokens"
    ]
    yield from _table(rows)
    told = ", ".join(f"{reason.replace('_', ' ')} {n}" for reason, n in sorted(summary.reasons.items()))
    yield f"  decisions: {told or 'none'}"
    yield ""
    yield "What the servers' /metrics say"
    names = sorted({name for found in summary.metrics.values() for name in found})
    rows = [("", *summary.metrics)]
    rows += [(name, *(f"{found.get(name, 0):,.6g}" for found in summary.metrics.values())) for name in names]
    yield from _table(rows)
    yield ""
    same = "the same answers on all paths" if summary.outputs_identical else "DIFFERENT answers"
    yield f"Greedy decoding: {same}" + (f": {', '.join(summary.differing)}" if summary.differing else "")
    failed = [name for name, held in summary.checks.items() if not held]
    yield "Checks: all held" if not failed else f"Checks that did NOT hold: {', '.join(failed)}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()
