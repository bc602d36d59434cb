"""One item put to every arm.

Owns the order of the work, which is what bounds memory: the KV of one item, and the mapped context of the one
before, which is the other document of this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...handoff.mapping.contract import KvMap
from .arms import Handed, Held, hand_over
from .items import Item
from .reader import Reader, read_context
from .scoring import Chosen, Continued, choose, continue_text, question_of, reread_of

__all__ = ["SHORT", "Asked", "Plan", "ask", "map_context"]

SHORT = 32
"""Tokens of the continuation in the comparisons that are made at the side: held back, and beyond."""

_BEYOND_ARMS = ("target", "mapped", "raw", "none")


@dataclass(frozen=True, slots=True)
class Plan:
    """How every item is put."""

    source: Reader
    target: Reader
    map: KvMap
    arms: tuple[str, ...]
    """Those that there are for this pair."""
    continuation_tokens: int
    hold_back: tuple[int, ...]
    """Tokens that the receiver re-reads; 1 is every arm's own, since it has to begin with something."""
    offset: int | None
    """Where the items stand when they stand beyond the calibrated positions; None: they never do."""
    seed: int


@dataclass(slots=True)
class Asked:
    """What every arm made of one item."""

    item: Item
    context_tokens: int = 0
    """Of the target."""
    continued: dict[str, Continued] = field(default_factory=dict)
    chosen: dict[str, Chosen] = field(default_factory=dict)
    held_back: dict[int, dict[str, Continued]] = field(default_factory=dict)
    """By tokens re-read: mapped, and none."""
    beyond: dict[str, Continued] = field(default_factory=dict)


def ask(plan: Plan, item: Item, wrong: Held | None) -> tuple[Asked, Held]:
    """The item's figures, and its mapped context."""
    handed = _hand(plan, item, plan.arms, 0, wrong)
    asked = Asked(item, len(handed.context.target_ids))
    if item.is_choice:
        _choose(plan, handed, asked)
    else:
        _continue(plan, handed, asked)
    return asked, handed.arms["mapped"]


def map_context(plan: Plan, item: Item) -> Held:
    """The item's context through the map, and nothing else."""
    return _hand(plan, item, ("mapped",), 0, None).arms["mapped"]


def _hand(plan: Plan, item: Item, arms: tuple[str, ...], offset: int, wrong: Held | None) -> Handed:
    context = read_context(item.context, plan.source, plan.target)
    return hand_over(
        context, plan.source, plan.target, plan.map, arms=arms, offset=offset, seed=plan.seed, wrong=wrong
    )


def _choose(plan: Plan, handed: Handed, asked: Asked) -> None:
    question = question_of(plan.target, asked.item)
    for name in handed.arms:
        held, reread = reread_of(handed, name, 1)
        asked.chosen[name] = choose(plan.target, held, reread, question, asked.item)
    own = question_of(plan.source, asked.item)
    last = handed.context.source_ids[-1:]
    asked.chosen["source"] = choose(plan.source, handed.source.without_last(1), last, own, asked.item)


def _continue(plan: Plan, handed: Handed, asked: Asked) -> None:
    item = asked.item
    text = item.continuation
    ids = plan.target.continued(item.context, text)
    if len(ids) > plan.continuation_tokens:
        text = text[: plan.target.cut(text, plan.continuation_tokens)]
        ids = plan.target.continued(item.context, text)
    held, reread = reread_of(handed, "target", 1)
    asked.continued["target"], beside = continue_text(plan.target, held, reread, ids, len(text))
    for name in handed.arms:
        if name != "target":
            held, reread = reread_of(handed, name, 1)
            asked.continued[name], _ = continue_text(plan.target, held, reread, ids, len(text), beside)
    same = plan.source.kv.tokenizer == plan.target.kv.tokenizer
    own = plan.source.continued(item.context, text)
    asked.continued["source"], _ = continue_text(
        plan.source,
        handed.source.without_last(1),
        handed.context.source_ids[-1:],
        own,
        len(text),
        beside,
        comparable=same,
    )
    short = plan.target.characters(item.context, text, SHORT)
    for tokens in plan.hold_back:
        if tokens > 1:
            asked.held_back[tokens] = {}
            for name in ("mapped", "none"):
                held, reread = reread_of(handed, name, tokens)
                asked.held_back[tokens][name], _ = continue_text(
                    plan.target, held, reread, ids[:SHORT], short, beside
                )
    if plan.offset is not None:
        _beyond(plan, asked, ids[:SHORT], short)


def _beyond(plan: Plan, asked: Asked, ids: tuple[int, ...], characters: int) -> None:
    arms = tuple(name for name in plan.arms if name in _BEYOND_ARMS)
    handed = _hand(plan, asked.item, arms, plan.offset or 0, None)
    held, reread = reread_of(handed, "target", 1)
    asked.beyond["target"], beside = continue_text(plan.target, held, reread, ids, characters)
    for name in handed.arms:
        if name == "target":
            continue
        held, reread = reread_of(handed, name, 1)
        asked.beyond[name], _ = continue_text(plan.target, held, reread, ids, characters, beside)
