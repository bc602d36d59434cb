"""The page of a run directory: what happened to every request, and whether the predictions were right.

Owns the order: the run's own sentences (where it has some), the distributions that must never be mixed, the
ledger, predictions against what happened, the turn and the policies of a demo, its checks, and another run
beside it. A run that did not come to its end is shown as far as it came, and says so first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import FormatError, UsageError
from ...gate.facts import Reason
from ...runs.decisions import DecisionRecord
from ...runs.demo_summary import DemoSummary
from ...runs.directory import RunDirectory
from ...runs.machine import Machine
from .beside import beside_section
from .content import Check, Page, Section, Table, Tile, Tone, in_rows
from .document import write_page
from .ledger import ledger_section, totals
from .numbers import compact, count, optional_seconds, percent, seconds, size
from .predictions import predictions_section
from .times import Times, distributions_section, times_of
from .turn import policies_section, turn_section

__all__ = ["run_page", "write_run_page"]

_CHECKS = {
    "outputs_identical": "The same greedy tokens, whichever way a prompt became ready",
    "ledger_sums_to_prompts": "Every prompt token is booked once: the ledger sums to the prompts",
    "flip_within_a_step": "The rule turned to recompute within one step of the predicted bandwidth",
    "pool_hits_beat_cold": "p95 of pool hits lies below p50 of cold prefills",
    "gate_no_worse_than_best_fixed": "At unseen bandwidths the gate took no longer than the better "
    "fixed policy (15% allowed)",
    "survived_loss": "With the pool lost in mid-load every request finished by recompute, answers unchanged",
    "recovered": "Loads resumed by themselves once the pool was back",
}


def write_run_page(
    run: str | Path | RunDirectory, path: str | Path, *, beside: str | Path | None = None
) -> Path:
    """Write the page of a run directory, with another run `beside` it where one is named.

    Raises `UsageError` for a folder without a run or a file that cannot be written, `FormatError` with file
    and line for a record that does not parse, `MissingExtra` without the extra `report`.
    """
    return write_page(run_page(run, beside=beside), path)


def run_page(run: str | Path | RunDirectory, *, beside: str | Path | None = None) -> Page:
    """What is on the page. Raises as `write_run_page`."""
    directory = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
    other = None if beside is None else RunDirectory.open(beside)
    records: list[DecisionRecord] = []
    if (directory.path / "decisions.jsonl").is_file():
        records = list(directory.decisions(DecisionRecord))
    summary = directory.summary() if (directory.path / "summary.json").is_file() else None
    if not records and summary is None:
        raise UsageError(
            f"{directory.path} holds neither decisions.jsonl nor summary.json: the run ended before it did "
            "anything; run it again"
        )
    demo = _demo(directory, summary)
    times = times_of(records, directory, demo)
    found = (
        distributions_section(times, demo),
        ledger_section(records),
        predictions_section(records),
        turn_section(demo),
        policies_section(demo),
        _checks(demo),
        _figures(summary) if demo is None else None,
        None if other is None else beside_section(directory, other),
    )
    header = directory.header
    name = directory.path.resolve().name
    return Page(
        kind="Run",
        title=name if demo is None else f"Demo run {name}",
        subtitle=_subtitle(directory, records, demo),
        verdict=_verdict(records, demo, summary is not None),
        tone=_tone(demo),
        tiles=tuple(_tiles(records, times, demo)),
        sections=in_rows(found),
        facts=(
            ("command", " ".join(header.command)),
            ("seed", "none" if header.seed is None else str(header.seed)),
            *((key, value) for key, value in sorted(header.versions.items())),
            *_machine(header.machine),
        ),
    )


def _demo(directory: RunDirectory, summary: dict[str, Any] | None) -> DemoSummary | None:
    """The summary as a demo's; None where another command wrote it."""
    if summary is None or not {"arms", "flips", "policies"} <= summary.keys():
        return None
    try:
        return msgspec.convert(summary, DemoSummary)
    except msgspec.ValidationError as error:
        raise FormatError(f"{directory.path / 'summary.json'}: not the summary of a demo: {error}") from error


def _subtitle(directory: RunDirectory, records: Sequence[DecisionRecord], demo: DemoSummary | None) -> str:
    parts = [
        f"{count(len(records))} requests",
        f"started {directory.header.started[:16].replace('T', ' ')} UTC",
    ]
    if demo is not None:
        parts.insert(0, demo.model)
    replicas = sorted({record.replica for record in records})
    if replicas:
        parts.insert(
            -1, f"replicas {', '.join(replicas)}" if len(replicas) < 6 else f"{len(replicas)} replicas"
        )
    return " · ".join(parts)


def _verdict(records: Sequence[DecisionRecord], demo: DemoSummary | None, finished: bool) -> tuple[str, ...]:
    if demo is not None and demo.sentences:
        return demo.sentences
    saved, hits = 0.0, 0
    for record in records:
        if record.decision is not None and record.decision.loads and record.actual.load_seconds is not None:
            saved += record.decision.recompute_seconds - record.actual.load_seconds
            hits += record.path == "pool_hit"
    than = "less" if saved >= 0 else "more"
    rest = [
        f"{count(hits)} of {count(len(records))} requests became ready from the pool.",
        f"Decisions that turned out wrong lost {seconds(_lost(records))}, as the other choice was predicted.",
    ]
    if not finished:
        rest.append("There is no summary.json: the run did not come to its end, or was no experiment.")
    if not hits:
        return ("Nothing was loaded from the pool.", *rest)
    return (f"Loads took {seconds(abs(saved))} {than} than computing was predicted to.", *rest)


def _lost(records: Sequence[DecisionRecord]) -> float:
    """Of decisions that the rule made; a forced policy decides nothing."""
    forced = (Reason.ALWAYS, Reason.NEVER)
    return sum(r.lost_seconds for r in records if r.decision is None or r.decision.reason not in forced)


def _tone(demo: DemoSummary | None) -> Tone:
    if demo is None:
        return "plain"
    return "good" if all(demo.checks.values()) else "bad"


def _tiles(records: Sequence[DecisionRecord], times: Times, demo: DemoSummary | None) -> list[Tile]:
    tiles = []
    for path, words in (("pool_hit", "First token, pool hit"), ("cold", "First token, cold")):
        found = times.get(path)
        if found is not None and found.p50_seconds is not None:
            tiles.append(Tile(words, optional_seconds(found.p50_seconds), f"median of {count(found.n)}"))
    ledger = totals(records)
    total = sum(ledger.values())
    if total:
        held = sum(tokens for outcome, tokens in ledger.items() if outcome.value.endswith("_hit"))
        tiles.append(Tile("From a cache", percent(held / total), f"of {compact(total)} prompt tokens"))
    tiles.append(
        Tile("Lost by wrong decisions", seconds(_lost(records)), "as the other choice was predicted")
    )
    if demo is not None:
        held_checks = sum(demo.checks.values())
        tiles.append(
            Tile(
                "Checks",
                f"{held_checks} of {len(demo.checks)}",
                "hold",
                "good" if held_checks == len(demo.checks) else "bad",
            )
        )
        moved = demo.bytes
        if {"read", "published"} <= moved.keys():
            tiles.append(
                Tile("Read from the pool", size(moved["read"]), f"{size(moved['published'])} published")
            )
    return tiles


def _machine(machine: Machine) -> list[tuple[str, str]]:
    facts = msgspec.structs.asdict(machine)
    memory = facts.pop("memory_bytes", None)
    return [
        *((name, str(value)) for name, value in facts.items()),
        ("memory", "unknown" if memory is None else size(memory)),
    ]


def _checks(demo: DemoSummary | None) -> Section | None:
    if demo is None:
        return None
    checks = tuple(
        Check(_CHECKS.get(name, name.replace("_", " ")), held) for name, held in demo.checks.items()
    )
    failed = sum(not check.held for check in checks)
    lead = "" if not failed else f"{failed} of {len(checks)} did not hold."
    if demo.differing:
        lead += f" Answered in more than one way: {', '.join(demo.differing)}."
    return Section(name="checks", title="What had to hold", lead=lead.strip(), checks=checks, half=True)


def _figures(summary: dict[str, Any] | None) -> Section | None:
    """The numbers of a summary whose meaning this page does not know."""
    rows: list[tuple[str, str]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else str(key), inner)
        elif not isinstance(value, list):
            rows.append((name, f"{value:.6g}" if isinstance(value, float) else str(value)))

    walk("", summary or {})
    if not rows:
        return None
    return Section(
        name="summary", title="Summary", table=Table(("figure", "value"), tuple(rows), frozenset({1}))
    )
