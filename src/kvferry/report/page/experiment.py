"""What a demo's page repeats from its summary.json, whichever engine served: arms, checks, sentences.

Owns telling the two demos apart, and the words of their checks. A demo that was killed has its stages and no
summary: it is an experiment without arms and checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from ...errors import FormatError
from ...runs.demo_summary import Arm, DemoSummary
from ...runs.directory import RunDirectory
from ...runs.vllm_demo_summary import VllmDemoSummary
from .content import Check, Section
from .numbers import seconds

__all__ = ["Experiment", "checks_section", "experiment_of"]

_T = TypeVar("_T")

_CHECKS = {
    "outputs_identical": "The same greedy tokens, whichever way a prompt became ready",
    "ledger_sums_to_prompts": "Every prompt token is booked once: the ledger sums to the prompts",
    "flip_within_a_step": "The rule turned to recompute within one step of the predicted bandwidth",
    "pool_hits_beat_cold": "p95 of pool hits lies below p50 of cold prefills",
    "gate_no_worse_than_best_fixed": "At unseen bandwidths the gate took no longer than the better "
    "fixed policy (15% allowed)",
    "survived_loss": "With the pool lost in mid-load every request finished by recompute, answers unchanged",
    "recovered": "Loads resumed by themselves once the pool was back",
    "everything_published": "Every block that was to be shared reached the pool",
    "pool_hit_at_most_a_tenth_of_cold": "A pool hit took at most a tenth of a cold prefill, by the medians",
    "every_arm_was_tried": "Every way to a ready prompt was tried",
    "cold_loads_nothing": "A cold prompt was computed whole",
    "local_hits_are_local": "Local hits came from the server's own prefix cache",
    "pool_hits_come_from_the_pool": "Pool hits came from the pool",
    "hand_offs_are_booked_as_such": "Hand-offs are booked as hand-offs, never as prefix hits",
    "told_to_recompute_loads_nothing": "Requests that were told to recompute loaded nothing",
    "a_broken_block_ends_a_load_half_way": "A broken block ended its load half-way: what came before was "
    "used, the rest computed",
    "a_killed_pool_is_survived": "With the pool killed every request finished by recompute",
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A demo, as far as it came."""

    engine: Literal["transformers", "vllm"]
    model: str
    arms: Mapping[str, Arm]
    checks: Mapping[str, bool]
    differing: tuple[str, ...]
    sentences: tuple[str, ...]
    demo: DemoSummary | None = None
    vllm: VllmDemoSummary | None = None

    @property
    def finished(self) -> bool:
        """Whether it has a summary."""
        return self.demo is not None or self.vllm is not None


def experiment_of(directory: RunDirectory, summary: Mapping[str, Any] | None) -> Experiment | None:
    """The demo whose run this is; None for another command's. Raises `FormatError` for a broken summary."""
    if directory.header.command[1:2] != ["demo"] or (summary is not None and "arms" not in summary):
        return None
    engine = directory.header.equal.get("engine", "transformers")
    if summary is None:
        model = str(directory.header.equal.get("model", ""))
        return Experiment("vllm" if engine == "vllm" else "transformers", model, {}, {}, (), ())
    if engine == "vllm":
        vllm = _converted(directory, summary, VllmDemoSummary)
        return Experiment(
            "vllm", vllm.model, vllm.arms, vllm.checks, vllm.differing, _sentences(vllm), vllm=vllm
        )
    demo = _converted(directory, summary, DemoSummary)
    return Experiment(
        "transformers", demo.model, demo.arms, demo.checks, demo.differing, demo.sentences, demo=demo
    )


def checks_section(experiment: Experiment | None) -> Section | None:
    """What had to hold; None where nothing had."""
    if experiment is None or not experiment.checks:
        return None
    checks = tuple(
        Check(_CHECKS.get(name, name.replace("_", " ")), held) for name, held in experiment.checks.items()
    )
    failed = sum(not check.held for check in checks)
    lead = "" if not failed else f"{failed} of {len(checks)} did not hold."
    if experiment.differing:
        lead += f" Answered in more than one way: {', '.join(experiment.differing)}."
    return Section(name="checks", title="What had to hold", lead=lead.strip(), checks=checks, half=True)


def _converted(directory: RunDirectory, summary: Mapping[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(summary, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{directory.path / 'summary.json'}: not the summary of a demo: {error}") from error


def _sentences(vllm: VllmDemoSummary) -> tuple[str, ...]:
    """A demo with vLLM leaves figures and no sentences."""
    found = []
    pool, cold = vllm.arms.get("pool"), vllm.arms.get("cold")
    if pool is not None and cold is not None and pool.p50_seconds and cold.p50_seconds:
        ratio = cold.p50_seconds / pool.p50_seconds
        than = f"{ratio:.1f} times faster" if ratio >= 1 else f"{1 / ratio:.1f} times slower"
        found.append(
            f"A prompt that the other server had computed gave its first token after "
            f"{seconds(pool.p50_seconds)}, {than} than a cold prefill ({seconds(cold.p50_seconds)})."
        )
    if vllm.pool_minus_local_seconds is not None:
        word = "more" if vllm.pool_minus_local_seconds >= 0 else "less"
        apart = seconds(abs(vllm.pool_minus_local_seconds))
        found.append(f"That is {apart} {word} than a hit of the server's own prefix cache.")
    found.append(
        "All paths gave the same greedy answers."
        if vllm.outputs_identical
        else "NOT all paths gave the same greedy answers."
    )
    return tuple(found)
