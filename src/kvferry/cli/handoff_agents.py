"""`kvferry handoff agents`: what a map between two families is worth when one agent hands over to another.

Owns the command's options and what it prints. The map is opened before the models: it is the cheaper mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .handoff_figures import figure_cells
from .handoff_options import Device, Dtype, Threads
from .handoff_pair import open_pair, say
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..handoff.crossing.crossmap import CrossMap
    from ..measure.crossing.agents import AgentsFound

__all__ = ["agents"]


def agents(
    source: str,
    target: str,
    *,
    map: Path,
    limit: int = 40,
    keep: float = 0.5,
    hold_back: int = 8,
    summary_tokens: int = 0,
    seed: int = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Let SOURCE's agent read a document and hand over to TARGET's, which must answer about it.

    Every way of handing over answers the same questions: the document's text again, a summary, mapped KV,
    fewer tokens of KV, both, nothing, and a random mapper. What mapping costs and what leaving out tokens
    costs are given apart and together, with the wall clock of each part.

    Parameters
    ----------
    source
        The model of the agent that has read the document.
    target
        The model of the agent that must answer.
    map
        A file of kvferry handoff train.
    limit
        Documents; each has one question.
    keep
        Share of tokens that is left in a compacted cache.
    hold_back
        Last tokens of the document that the receiver reads itself, in every way that hands over KV and in
        "none", which hands over nothing.
    summary_tokens
        Tokens of a summary that the first agent writes for the second; 0: none is written.
    seed
        Of documents and of the random mapper.
    """
    from ..engines.transformers.capture import check_computing
    from ..handoff.crossing.file import open_cross_map
    from ..measure.crossing.agents import Task, run_agents

    task = Task(limit=limit, keep=keep, hold_back=hold_back, summary_tokens=summary_tokens, seed=seed)
    check_computing(dtype=dtype, device=device, threads=threads)
    made = open_cross_map(map, device=device)
    ours, theirs = open_pair(source, target, dtype=dtype, device=device, threads=threads)
    made.dtype = theirs.dtype
    made.check(ours.kv, theirs.kv)
    found = run_agents(ours, theirs, made, task, say=say)
    if json:
        write_json({"map": str(map), "digest": made.digest(), **msgspec.to_builtins(found)})
    else:
        _print_agents(made, found)
    return 0


def _print_agents(made: CrossMap, found: AgentsFound) -> None:
    print(
        f"{found.documents} documents, {found.questions} questions of {found.choices} choices; "
        f"{found.mean_tokens:.0f} tokens a document, the receiver re-reads {found.hold_back}"
    )
    print()
    rows = [("way", "accuracy", "95 % interval", "tokens kept", "hand-over", "answer", "NLL of the answer")]
    rows += [
        (
            arm.name,
            *figure_cells(arm.accuracy, "{:.3f}"),
            f"{arm.kept_tokens:.0f}",
            f"{arm.handover_seconds * 1e3:.0f} ms",
            f"{arm.answer_seconds * 1e3:.0f} ms",
            f"{arm.answer_nll:.2f}",
        )
        for arm in found.arms
    ]
    write_columns(rows, right=(1, 3, 4, 5, 6), indent="  ")
    print()
    gains = [("difference in accuracy; of the answer's NLL", "", "95 % interval")]
    gains += [(name, *figure_cells(figure, "{:+.3f}")) for name, figure in found.differences.items()]
    write_columns(gains, right=(1,), indent="  ")
    print()
    print(
        f"the first agent's reading, {found.source_seconds * 1e3:.0f} ms a document, is the same in every way"
    )
    facts = made.facts
    if facts is not None:
        seconds = sum(facts.seconds.values())
        print(
            f"the map took {facts.trained_tokens + facts.calibration_tokens:,} tokens and "
            f"{seconds / 3600:.2f} hours of {facts.device}"
        )
    if not found.beats_controls:
        print("FAILED: mapped KV does not beat no context and the random mapper with intervals above zero")
