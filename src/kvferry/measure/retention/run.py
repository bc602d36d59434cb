"""The whole measurement: gate, items, conversations, figures, verdict.

Owns the order and what is said on the way. Nothing is printed here: `say` hears of progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ... import __version__
from ...engines.transformers.capture import Captured
from ...handoff.mapping.contract import KvMap
from ...runs.retention_summary import ARMS, MapFacts, Retention, Settings
from .answers import Choices
from .arms import name_arms
from .asking import Asked, Plan, ask, map_context
from .gate import check_gate
from .gathering import Wanted, context_tokens, gather
from .items import Item
from .longer import sum_longer
from .naming import name_figures
from .opening import calibrated_positions
from .reach import far_offset, reach_of
from .reader import Reader
from .requirements import check_required
from .summing import HORIZONS, Continuations, sum_turns
from .tasks.library import library_documents
from .turns import HandedOn, hand_on
from .verdict import judge

__all__ = ["HANDOFFS", "TURN_TOKENS", "measure_retention"]

HANDOFFS = 3
TURN_TOKENS = 32


def measure_retention(
    source: Captured,
    target: Captured,
    map_: KvMap,
    wanted: Wanted,
    *,
    map_file: str = "",
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[Asked], None] = lambda _: None,
) -> Retention:
    """Everything about a map from `source` to `target`. `keep` gets each item as it is done.

    Items whose contexts are longer than the calibrated positions are measured apart from all others.

    Raises ModelError where the gate does not hold or a model cannot be read on, UsageError for items that
    there are not.
    """
    seconds: dict[str, float] = {}
    clock = _Stopwatch(seconds)
    ours, theirs = Reader(source), Reader(target)
    gate = check_gate(ours, theirs)
    say(f"gate: native KV injected again gives the same logits, to {gate.injected_logit_error:.1g}")
    clock.lap("gate")
    seen: frozenset[str] = getattr(map_, "seen_documents", frozenset())
    wanted = replace(wanted, without=wanted.without | seen)
    calibrated = calibrated_positions(map_)
    gathered = gather(wanted, theirs, calibrated)
    items = gathered.inside
    documents, others = (len({item.document for item in some}) for some in (items, gathered.longer))
    arms = name_arms(ours.kv, theirs.kv, max(documents, others))
    reach, _ = (
        reach_of(some, (ours, theirs), wanted.continuation_tokens) for some in (items, gathered.longer)
    )
    offset = far_offset(calibrated, (source, target), reach)
    plan = Plan(
        source=ours,
        target=theirs,
        map=map_,
        arms=tuple(name for name in ARMS if not arms[name].absent),
        continuation_tokens=wanted.continuation_tokens,
        hold_back=wanted.hold_back,
        offset=offset if isinstance(offset, int) else None,
        seed=wanted.seed,
    )
    asked = _ask_all(plan, items, say, keep)
    clock.lap("items")
    aside = replace(plan, hold_back=(), offset=None)
    longer = sum_longer(_ask_all(aside, gathered.longer, say, keep), calibrated, wanted.seed)
    clock.lap("longer items")
    handed_on = _converse(plan, wanted, gathered.all, say)
    clock.lap("turns")
    continued, chosen = Continuations(asked, wanted.seed), Choices(asked, wanted.seed)
    beyond = continued.beyond(offset) if isinstance(offset, int) else offset
    turns = sum_turns(handed_on, TURN_TOKENS, wanted.seed)
    gains = continued.gains()
    top1 = {str(horizon): continued.top1(horizon) for horizon in HORIZONS}
    figures = name_figures(continued, chosen, top1, gains, beyond, turns, longer)
    verdict = judge(
        figures,
        {name: figures[f"gain_over_{name}"] for name in ("none", "random", "wrong") if not arms[name].absent},
        continued.documents,
        longer,
    )
    accuracy, exact, curve = chosen.accuracy(), chosen.exact(), continued.curve()
    hold_back = tuple(continued.hold_back(tokens) for tokens in wanted.hold_back)
    clock.lap("intervals")
    return Retention(
        kvferry=__version__,
        source=source.kv.name,
        target=target.kv.name,
        map=MapFacts(
            name=map_.name,
            file=map_file,
            trained_tokens=map_.trained_tokens,
            calibrated_positions=calibrated,
        ),
        settings=Settings(
            tasks=wanted.tasks,
            items_file=wanted.items_file,
            limit=wanted.limit,
            context_tokens=context_tokens(wanted, calibrated),
            longer_tokens=wanted.longer_tokens,
            continuation_tokens=wanted.continuation_tokens,
            hold_back=wanted.hold_back,
            seed=wanted.seed,
        ),
        gate=gate,
        arms=arms,
        documents=documents,
        items={
            name: sum(item.task == name for item in items)
            for name in dict.fromkeys(item.task for item in items)
        },
        figures=figures,
        nll_per_character=continued.nll_per_character(),
        nll_per_token=continued.nll_per_token(),
        kl=continued.kl(),
        top1=top1,
        gains=gains,
        accuracy=accuracy,
        exact=exact,
        accuracy_differences=chosen.differences(),
        curve=curve,
        beyond=beyond,
        hold_back=hold_back,
        turns=turns,
        longer=longer,
        notes=_notes(wanted, calibrated, len(gathered.longer), (source, target), seen),
        seconds=seconds,
        verdict=verdict,
        required=check_required(wanted.required, figures),
    )


class _Stopwatch:
    def __init__(self, into: dict[str, float]) -> None:
        self._into, self._since = into, time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._into[name], self._since = now - self._since, now


def _ask_all(
    plan: Plan, items: Sequence[Item], say: Callable[[str], None], keep: Callable[[Asked], None]
) -> list[Asked]:
    began = time.perf_counter()
    # Another document's context is the one before; the first item's is the last of another document.
    other = next((item for item in reversed(items) if item.document != items[0].document), None)
    before = None if other is None else (other.document, map_context(plan, other))
    found = []
    for number, item in enumerate(items, 1):
        wrong = before[1] if before is not None and before[0] != item.document else None
        asked, mapped = ask(plan, item, wrong)
        found.append(asked)
        keep(asked)
        before = item.document, mapped
        if number == 1 or number == len(items) or number % max(1, len(items) // 8) == 0:
            spent = time.perf_counter() - began
            say(
                f"{number} of {len(items)} items, {spent:.0f} s, "
                f"about {spent / number * (len(items) - number):.0f} s left"
            )
    return found


def _converse(
    plan: Plan, wanted: Wanted, items: Sequence[Item], say: Callable[[str], None]
) -> list[HandedOn]:
    """Conversations over texts that are long enough: the user's, or modules that no item is of."""
    used = {item.document for item in items}
    if wanted.tasks:
        texts = [
            (name, text[len(text) // 3 :])
            for name, text in library_documents(wanted.seed, without=wanted.without)
            if name not in used
        ]
    else:
        texts = list({item.document: item.context + item.continuation for item in items}.items())
    found: list[HandedOn] = []
    for name, text in texts:
        if len(found) == wanted.limit:
            break
        one = hand_on(
            name,
            text[: 2 * HANDOFFS * TURN_TOKENS * 12],
            plan.source,
            plan.target,
            plan.map,
            handoffs=HANDOFFS,
            turn_tokens=TURN_TOKENS,
        )
        if one is not None:
            found.append(one)
    say(f"{len(found)} conversations of {HANDOFFS} hand-offs")
    return found


def _notes(
    wanted: Wanted,
    calibrated: int | None,
    longer: int,
    models: tuple[Captured, Captured],
    seen: frozenset[str],
) -> tuple[str, ...]:
    found = [
        "agreement and KL are teacher-forced on the items' own continuations, not on what a model would say",
    ]
    if models[0].kv.tokenizer != models[1].kv.tokenizer:
        found.append(
            "source and target have other tokens: compare the source by NLL a character and by answers only"
        )
    else:
        sizes = [int(model.config.vocab_size) for model in models]
        if sizes[0] != sizes[1]:
            found.append(
                f"one tokenizer, but logits of {sizes[0]:,} and {sizes[1]:,} tokens: KL and agreement of the "
                f"source are over the first {min(sizes):,}, renormalised"
            )
    if longer:
        found.append(
            f"{longer:,} items have contexts of more than the {calibrated:,} calibrated positions: they are "
            "in the figures of longer contexts alone"
        )
    if calibrated is not None and (turns := 2 * HANDOFFS * TURN_TOKENS) > calibrated:
        found.append(
            f"conversations reach to about position {turns}, the map was calibrated on {calibrated:,}"
        )
    if seen and wanted.tasks:
        found.append(
            f"the {len(seen):,} documents that the map names as its training's and validation's are left out"
        )
    if not wanted.without and wanted.tasks:
        found.append(
            "whether the map was fitted on these very texts is not known; name its folder with --fitted-on"
        )
    return tuple(found)
