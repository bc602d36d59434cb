"""The ways in which a receiver may come by a context: its own KV, mapped KV, and controls.

Owns the KV of each arm for one item, and why a pair of models has no such arm. All arms of an item share one
prefill of the source and one of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...handoff.mapping.contract import Context, KvMap
from ...handoff.mapping.shapes import LayerKv, ModelKv
from ...runs.retention_summary import Arm
from .random_map import at_depth, random_map
from .reader import Reader, leading_marks

__all__ = ["Handed", "Held", "hand_over", "name_arms", "raw_refusal"]


@dataclass(frozen=True, slots=True)
class Held:
    """A context as an arm has it: KV of tokens from position `offset` on. No layers: nothing."""

    layers: Sequence[LayerKv] | None
    tokens: int
    offset: int = 0

    def without_last(self, tokens: int) -> Held:
        """The same less its last tokens, which the receiver is going to read itself."""
        if self.layers is None:
            return self
        left = max(0, self.tokens - tokens)
        cut = [LayerKv(layer.keys[:, :left], layer.values[:, :left]) for layer in self.layers]
        return Held(cut, left, self.offset)


@dataclass(frozen=True, slots=True)
class Handed:
    """One item's context, in every arm."""

    context: Context
    arms: Mapping[str, Held]
    """By name: those of the target; the source's own is in `source`."""
    source: Held

    @property
    def opening(self) -> int:
        """Tokens that the target's tokenizer puts before any text: an arm without context has these too."""
        return leading_marks(self.context.target_spans)


def hand_over(
    context: Context,
    source: Reader,
    target: Reader,
    map_: KvMap,
    *,
    arms: Sequence[str],
    offset: int = 0,
    seed: int = 0,
    wrong: Held | None = None,
) -> Handed:
    """Compute the context with both models and carry it, its first token at position `offset`.

    `wrong` is the context of another document, mapped.
    """
    ours = source.prefill(context.source_ids, offset=offset)
    tokens = len(context.target_ids)
    found: dict[str, Held] = {}
    if "target" in arms:
        found["target"] = Held(target.prefill(context.target_ids, offset=offset).layers, tokens, offset)
    positions = torch.arange(offset, offset + tokens, device=ours.positions.device)
    with torch.inference_mode():
        mapped = map_.carry(context, ours, positions)
        found["mapped"] = Held(mapped.layers, tokens, offset)
        if "raw" in arms:
            count = len(target.kv.layers)
            layers = [ours.layers[at_depth(at, count, len(ours.layers))] for at in range(count)]
            found["raw"] = Held(layers, tokens, offset)
        if "random" in arms:
            made = random_map(context, ours, mapped, (source.kv, target.kv), seed)
            found["random"] = Held(made.layers, tokens, offset)
    if wrong is not None and "wrong" in arms:
        found["wrong"] = wrong
    if "none" in arms:
        found["none"] = Held(None, 0, offset)
    return Handed(context, found, Held(ours.layers, len(context.source_ids), offset))


def raw_refusal(source: ModelKv, target: ModelKv) -> str:
    """Why the source's KV cannot be used as it is; empty where it can."""
    if source.tokenizer != target.tokenizer:
        return "the tokenizers differ, so the tokens do too"
    ours = {(one.kv_heads, one.key_width, one.value_width) for one in source.layers}
    theirs = {(one.kv_heads, one.key_width, one.value_width) for one in target.layers}
    if len(ours) != 1 or ours != theirs:
        return f"the shapes differ: KV heads, key width, value width {sorted(ours)} and {sorted(theirs)}"
    return ""


def name_arms(source: ModelKv, target: ModelKv, documents: int) -> dict[str, Arm]:
    """Every arm, what it is for these two models, and why it is not there where it is not."""
    same = source.tokenizer == target.tokenizer
    counts = len(source.layers), len(target.layers)
    by_depth = "" if counts[0] == counts[1] else f", {counts[0]} layers for {counts[1]} by their depth"
    return {
        "target": Arm(note="the target's own KV of the context: what every other arm is held against"),
        "source": Arm(
            note="the source alone, with its own KV and its own words"
            + ("" if same else "; its tokens are others, so NLL a character and answers are compared")
        ),
        "mapped": Arm(note="the source's KV through the map"),
        "raw": Arm(note=f"the source's KV as it is{by_depth}", absent=raw_refusal(source, target)),
        "random": Arm(
            note="the source's KV through a random matrix, with the mapped KV's mean and spread by channel"
        ),
        "wrong": Arm(
            note="the mapped KV of another document's context",
            absent="" if documents > 1 else "there is one document only",
        ),
        "none": Arm(note="no context: only what the receiver reads itself"),
    }
