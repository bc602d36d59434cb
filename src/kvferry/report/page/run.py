"""The page of a run directory: what happened to every request, and whether the predictions were right.

Owns the order: the run's own sentences (where it has some), the distributions that must never be mixed, the
ledger, predictions against what happened, the turn and the policies of a demo, its checks, and another run
beside it. A run that did not come to its end is shown as far as it came, and says so first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...errors import FormatError, UsageError
from ...runs.decisions import DecisionRecord
from ...runs.directory import RunDirectory
from ...runs.machine import Machine
from ...units import counted
from .beside import beside_section
from .content import Page, Tile, Tone, in_rows
from .counters import figures_section, metrics_section
from .document import write_page
from .experiment import Experiment, checks_section, experiment_of
from .ledger import ledger_section, not_computed, totals
from .numbers import compact, count, optional_seconds, percent, seconds, size
from .predictions import is_forced, predictions_section
from .times import Times, distributions_section, times_of
from .turn import policies_section, turn_section

__all__ = ["run_page", "write_run_page"]


def write_run_page(
    run: str | Path | RunDirectory,
    path: str | Path,
    *,
    beside: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a run directory, with another run `beside` it where one is named.

    Raises `UsageError` for a folder without a run or a file that cannot be written, `FormatError` for a
    summary or records that do not parse, `MissingExtra` without the extra `report`. Single records that do
    not parse are left out, and the page says so.
    """
    return write_page(run_page(run, beside=beside), path, overwrite=overwrite)


def run_page(run: str | Path | RunDirectory, *, beside: str | Path | None = None) -> Page:
    """What is on the page. Raises as `write_run_page`."""
    directory = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
    other = None if beside is None else RunDirectory.open(beside)
    records: list[DecisionRecord] = []
    skipped: list[str] = []
    if (directory.path / "decisions.jsonl").is_file():
        records = list(directory.decisions(DecisionRecord, skipped=skipped.append))
        if skipped and not records:
            raise FormatError(f"no line parses: {skipped[0]}")
    summary = directory.summary() if (directory.path / "summary.json").is_file() else None
    if not records and summary is None:
        raise UsageError(
            f"{directory.path} holds neither decisions.jsonl nor summary.json: the run ended before it did "
            "anything; run it again"
        )
    experiment = experiment_of(directory, summary)
    demo = None if experiment is None else experiment.demo
    times = times_of(records, directory, experiment, skipped=skipped.append)
    found = (
        distributions_section(times, experiment),
        ledger_section(records),
        predictions_section(records),
        turn_section(demo),
        policies_section(demo),
        checks_section(experiment),
        metrics_section(None if experiment is None else experiment.vllm),
        figures_section(summary) if experiment is None else None,
        None if other is None else beside_section(directory, other),
    )
    header = directory.header
    name = directory.path.resolve().name
    return Page(
        kind="Run",
        title=_title(name, experiment),
        subtitle=_subtitle(directory, records, experiment),
        verdict=_verdict(records, experiment, summary is not None, skipped),
        tone=_tone(experiment),
        tiles=tuple(_tiles(records, times, experiment)),
        sections=in_rows(found),
        facts=(
            ("command", " ".join(header.command)),
            ("seed", "none" if header.seed is None else str(header.seed)),
            *((key, value) for key, value in sorted(header.versions.items())),
            *_machine(header.machine),
        ),
    )


def _title(name: str, experiment: Experiment | None) -> str:
    if experiment is None:
        return name
    return f"Demo run {name}" if experiment.engine == "transformers" else f"Demo run {name} with vLLM"


def _subtitle(
    directory: RunDirectory, records: Sequence[DecisionRecord], experiment: Experiment | None
) -> str:
    parts = [
        counted(len(records), "request"),
        f"started {directory.header.started[:16].replace('T', ' ')} UTC",
    ]
    if experiment is not None and experiment.vllm is not None:
        parts.insert(0, experiment.vllm.vllm)
    if experiment is not None and experiment.model:
        parts.insert(0, experiment.model)
    replicas = sorted({record.replica for record in records})
    if replicas:
        few = f"replica{'s' if len(replicas) > 1 else ''} {', '.join(replicas)}"
        parts.insert(-1, few if len(replicas) < 6 else f"{len(replicas)} replicas")
    return " · ".join(parts)


def _verdict(
    records: Sequence[DecisionRecord], experiment: Experiment | None, finished: bool, skipped: Sequence[str]
) -> tuple[str, ...]:
    left_out: tuple[str, ...] = ()
    if skipped:
        left_out = (f"Left out: {counted(len(skipped), 'line')} that did not parse, the first {skipped[0]}.",)
    if experiment is not None and experiment.sentences:
        return (*experiment.sentences, *left_out)
    saved, hits, handed = 0.0, 0, sum(record.path == "handoff" for record in records)
    for record in records:
        if record.decision is not None and record.decision.loads and record.actual.load_seconds is not None:
            saved += record.decision.recompute_seconds - record.actual.load_seconds
            hits += record.path == "pool_hit"
    than = "less" if saved >= 0 else "more"
    rest = [
        f"{count(hits)} of {counted(len(records), 'request')} became ready from the pool.",
        f"Decisions that turned out wrong lost {seconds(_lost(records))}, as the other choice was predicted.",
        *left_out,
    ]
    if not finished:
        rest.append("There is no summary.json: the run did not come to its end, or was no experiment.")
    if handed:
        words = f"{count(handed)} of {counted(len(records), 'request')} became ready from a hand-off."
        return (words, *rest[0 if hits else 1 :])
    if not hits:
        return ("Nothing was loaded from the pool.", *rest)
    return (f"Loads took {seconds(abs(saved))} {than} than computing was predicted to.", *rest)


def _lost(records: Sequence[DecisionRecord]) -> float:
    """Of decisions that the rule made; a forced policy decides nothing."""
    return sum(record.lost_seconds for record in records if not is_forced(record))


def _tone(experiment: Experiment | None) -> Tone:
    if experiment is None or not experiment.finished:
        return "plain"
    return "good" if all(experiment.checks.values()) else "bad"


def _tiles(records: Sequence[DecisionRecord], times: Times, experiment: Experiment | None) -> list[Tile]:
    tiles = []
    for kinds, words in ((("pool_hit", "pool"), "First token, pool hit"), (("cold",), "First token, cold")):
        found = times.get(*kinds)
        if found is not None and found.p50_seconds is not None:
            tiles.append(Tile(words, optional_seconds(found.p50_seconds), f"median of {count(found.n)}"))
    ledger = totals(records)
    total = sum(ledger.values())
    if total:
        cached, handed = not_computed(ledger)
        note = f"of {compact(total)} prompt tokens"
        if handed:
            note += f"; {percent(handed / total)} more were handed over"
        tiles.append(Tile("From a cache", percent(cached / total), note))
    tiles.append(
        Tile(
            "Lost by wrong decisions",
            seconds(_lost(records)),
            "of the rule; forced choices are not among them"
            if any(map(is_forced, records))
            else "as the other choice was predicted",
        )
    )
    if experiment is not None and experiment.checks:
        held, every = sum(experiment.checks.values()), len(experiment.checks)
        tiles.append(Tile("Checks", f"{held} of {every}", "hold", "good" if held == every else "bad"))
    if experiment is not None and experiment.demo is not None:
        moved = experiment.demo.bytes
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
