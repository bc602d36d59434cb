"""One agent reads a document, another must answer about it: what each way of handing over is worth.

Owns the task, its ways and what is told apart: what mapping costs or brings, what leaving out tokens does,
and both together, each against handing over the text. Every way answers the same questions, one a document,
by the likeliest first token among the choices; the first agent's reading is the same in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from ...engines.transformers.capture import Captured
from ...errors import ModelError, UsageError
from ...handoff.crossing.compaction import (
    attention_received,
    carried_scores,
    chosen_tokens,
    compact,
)
from ...handoff.crossing.crossmap import CrossMap, random_map
from ...handoff.mapping.contract import Context
from ...handoff.mapping.shapes import Prefill
from ...runs.retention_summary import Figure, Interval
from ..retention.intervals import FEWEST, PairedBootstrap, wilson
from ..retention.reader import Reader, leading_marks, read_context
from .behind import first_tokens, logits_behind
from .facts import FactDocument, Question, fact_documents

__all__ = ["WAYS", "AgentsFound", "Task", "Way", "run_agents"]

WAYS = {
    "text": "the second agent reads the document itself",
    "summary": "the second agent reads what the first wrote of it",
    "mapped": "KV through the map",
    "compacted": "the second agent's own KV, fewer tokens of it",
    "mapped, compacted": "KV through the map, fewer tokens of it",
    "random": "KV through a random mapper with the same moments",
    "none": "nothing but the tokens that it re-reads itself",
}
_DIFFERENCES = {
    "mapping: mapped - text": ("mapped", "text"),
    "compaction: compacted - text": ("compacted", "text"),
    "both: mapped, compacted - text": ("mapped, compacted", "text"),
    "compaction of mapped KV: mapped, compacted - mapped": ("mapped, compacted", "mapped"),
    "mapped - summary": ("mapped", "summary"),
    "mapped - none": ("mapped", "none"),
    "mapped - random": ("mapped", "random"),
    "mapped, compacted - none": ("mapped, compacted", "none"),
}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents, and how KV is handed over."""

    limit: int = 40
    keep: float = 0.5
    """Share of the tokens before the hold-back that a compacted cache keeps."""
    hold_back: int = 8
    """Last tokens of the document that the receiver reads itself behind KV, and without any."""
    observers: int = 32
    """Last tokens whose attention says which tokens are kept."""
    summary_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit < FEWEST:
            raise UsageError(f"limit {self.limit}: an interval needs {FEWEST} documents at least")
        if not 0 < self.keep <= 1:
            raise UsageError(f"keep {self.keep}: more than 0, at most 1")
        if min(self.hold_back, self.summary_tokens, self.seed) < 0 or self.observers < 1:
            raise UsageError("hold-back, summary tokens and seed are at least 0, observers at least 1")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way of handing over, over all documents."""

    name: str
    note: str
    accuracy: Figure
    """Wilson's interval; one question a document."""
    answer_nll: float
    """Of the right choice among the choices, nats: ln(choices) is chance."""
    kept_tokens: float
    """Tokens that the receiver has KV of when the question comes, mean."""
    handover_seconds: float
    """From the end of the first agent's reading until the receiver may be asked, mean a document."""
    answer_seconds: float
    """Question, and what is held back, until the answer, mean."""


class AgentsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. `differences` are of accuracy and, with " (NLL)", of the answer's NLL: there less is
    better."""

    documents: int
    questions: int
    choices: int
    mean_tokens: float
    hold_back: int
    keep: float
    source_seconds: float
    """The first agent's reading, mean a document; with its queries, which compaction needs."""
    arms: list[Way]
    differences: dict[str, Figure]
    beats_controls: bool
    """By the answer's NLL: mapped KV against nothing and against the random mapper."""


@dataclass(slots=True)
class _Held:
    """What a way gives the receiver: KV, where the text goes on, and what it has yet to read itself."""

    kv: Prefill | None
    position: int
    reread: Sequence[int]

    @property
    def tokens(self) -> int:
        return len(self.reread) + (0 if self.kv is None else self.kv.tokens)


@dataclass(slots=True)
class _Tally:
    hits: list[float] = field(default_factory=list)
    nlls: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    handover: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)


@torch.inference_mode()
def run_agents(
    source: Captured,
    target: Captured,
    made: CrossMap,
    task: Task,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> AgentsFound:
    """Every way over the same documents. Raises ModelError where the target cannot be asked so."""
    documents = fact_documents(task.limit, seed=task.seed, side="test", questions=1)
    control = random_map(made, seed=task.seed)
    names = [name for name in WAYS if task.summary_tokens or name != "summary"]
    tallies = {name: _Tally() for name in names}
    readers = Reader(source), Reader(target)
    reading, lengths = [], []
    _warm(source, target, documents[0])
    for number, document in enumerate(documents, 1):
        context = read_context(document.text, *readers)
        began = _now(source)
        ours = source.prefill(context.source_ids, queries=True)
        reading.append(_now(source) - began)
        lengths.append(len(context.target_ids))
        for name in names:
            began = _now(target)
            held = _hand_over(
                name, source, target, control if name == "random" else made, context, ours, task
            )
            between = _now(target)
            right, nll = _answer(target, held, document.questions[0])
            tally = tallies[name]
            tally.handover.append(between - began)
            tally.answer.append(_now(target) - between)
            tally.hits.append(float(right))
            tally.nlls.append(nll)
            tally.kept.append(held.tokens)
        if number % 10 == 0:
            say(f"{number} of {len(documents)} documents")
    return _found(documents, tallies, reading, lengths, task)


def _hand_over(
    name: str,
    source: Captured,
    target: Captured,
    made: CrossMap,
    context: Context,
    ours: Prefill,
    task: Task,
) -> _Held:
    ids = context.target_ids
    tokens = len(ids)
    kept = max(1, tokens - task.hold_back)
    if name == "none":
        # What every way with KV re-reads, so that the difference is the KV's alone.
        marks = ids[: leading_marks(context.target_spans)]
        return _Held(None, 0, [*marks, *ids[max(kept, len(marks)) :]])
    if name == "text":
        return _Held(target.prefill(ids), tokens, ())
    if name == "summary":
        read = Reader(target).tokens(_summary(source, context, task.summary_tokens))[0]
        return _Held(target.prefill(read), len(read), ())
    if name == "compacted":
        whole = target.prefill(ids, queries=True)
        scores = attention_received(target.kv, whole, observers=task.observers)
    else:
        whole = made.carry(context, ours, torch.arange(tokens, device=target.model.device))
        if name != "mapped, compacted":
            return _Held(first_tokens(whole, kept), kept, ids[kept:])
        scores = attention_received(source.kv, ours, observers=task.observers)
        scores = carried_scores(scores, made.alignment(context)).to(whole.positions.device)
    few = max(2, round(task.keep * kept))
    chosen = chosen_tokens(scores[:kept], few, first=1)
    # Behind the kept tokens come the re-read ones and the question.
    less = compact(target.kv, first_tokens(whole, kept), chosen, following=task.hold_back + 64)
    return _Held(less.prefill, less.next_position, ids[kept:])


def _answer(target: Captured, held: _Held, question: Question) -> tuple[bool, float]:
    """Whether the right choice is the likeliest, and its NLL among the choices."""

    def encoded(text: str) -> list[int]:
        ids: list[int] = target.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    firsts = [encoded(choice)[0] for choice in question.choices]
    if len(set(firsts)) < len(firsts):
        raise ModelError(
            f"{target.kv.name} begins two of {question.choices} alike: they cannot be told apart"
        )
    logits = logits_behind(target, held.kv, [*held.reread, *encoded(question.prompt)], held.position, last=1)[
        0
    ]
    among = logits[torch.tensor(firsts, device=logits.device)].log_softmax(0)
    return int(among.argmax()) == question.answer, -float(among[question.answer])


def _summary(source: Captured, context: Context, tokens: int) -> str:
    """What the first agent writes of its document, greedily."""
    asked = context.text + "\n\nA short summary of the facts above:\n"
    ids = torch.tensor([source.encode(asked)], device=source.model.device)
    said = source.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return str(source.tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True))


def _found(
    documents: Sequence[FactDocument],
    tallies: dict[str, _Tally],
    reading: Sequence[float],
    lengths: Sequence[int],
    task: Task,
) -> AgentsFound:
    names = [one.name for one in documents]
    bootstrap = PairedBootstrap(names, seed=task.seed)
    of_trials = PairedBootstrap(names, seed=task.seed, trials=True)
    ways = [
        Way(
            name=name,
            note=WAYS[name],
            accuracy=wilson(sum(tally.hits), len(tally.hits)),
            answer_nll=_mean(tally.nlls),
            kept_tokens=_mean(tally.kept),
            handover_seconds=_mean(tally.handover),
            answer_seconds=_mean(tally.answer),
        )
        for name, tally in tallies.items()
    ]
    differences: dict[str, Figure] = {}
    for name, (one, other) in _DIFFERENCES.items():
        if one in tallies and other in tallies:
            differences[name] = of_trials.difference(tallies[one].hits, tallies[other].hits)
            differences[f"{name} (NLL)"] = bootstrap.difference(tallies[one].nlls, tallies[other].nlls)
    return AgentsFound(
        documents=len(documents),
        questions=len(documents),
        choices=len(documents[0].questions[0].choices),
        mean_tokens=_mean(lengths),
        hold_back=task.hold_back,
        keep=task.keep,
        source_seconds=_mean(reading),
        arms=ways,
        differences=differences,
        beats_controls=all(
            isinstance(figure := differences[f"mapped - {control} (NLL)"], Interval) and figure.high < 0
            for control in ("none", "random")
        ),
    )


def _warm(source: Captured, target: Captured, document: FactDocument) -> None:
    """What a first call costs once is nobody's hand-over."""
    for model in (source, target):
        model.prefill(model.encode(document.text))


def _now(model: Captured) -> float:
    """The time at which the device is done: it works behind our back."""
    device = model.model.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
