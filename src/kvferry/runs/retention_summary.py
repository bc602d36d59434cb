"""What a measurement of a map's retention found: its figures, their intervals, and the verdict.

Owns the names under which the figures are kept, so that whoever shows them need not know how they came
about. They are stable: a name that is here keeps its meaning.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "ARMS",
    "Arm",
    "Beyond",
    "Bin",
    "Figure",
    "Gate",
    "HoldBack",
    "Interval",
    "Longer",
    "MapFacts",
    "Refused",
    "Required",
    "Retention",
    "Settings",
    "Turn",
    "Turns",
    "Verdict",
]

ARMS = ("target", "source", "mapped", "raw", "random", "wrong", "none")
"""In the order in which they are shown."""


class Interval(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="interval"):
    """An estimate between the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Documents that it is made of."""

    @property
    def holds_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refused"):
    """Why there is no figure."""

    reason: str


Figure = Interval | Refused


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to have the context."""

    note: str
    """How its KV came about."""
    absent: str = ""
    """Why this pair has no such arm; empty where it has."""


class MapFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The map that was measured."""

    name: str
    file: str
    trained_tokens: int
    calibrated_positions: int | None
    """Positions 0 to this one less one; None where the map knows of none."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    tasks: tuple[str, ...]
    items_file: str
    limit: int | None
    context_tokens: int
    continuation_tokens: int
    hold_back: tuple[int, ...]
    seed: int
    longer_tokens: int | None = None
    """Contexts of the bundled items that are longer than calibrated; None: there are none."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The first gate: what had to hold before anything was measured."""

    source_strip_error: float
    target_strip_error: float
    injected_logit_error: float
    """Largest difference of logits behind an injected native cache, over their standard deviation."""


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `first` to `last` of the continuation, counted from 1, by arm."""

    first: int
    last: int
    nll_per_token: dict[str, Figure]
    kl: dict[str, Figure]
    top1: dict[str, Figure]


class Beyond(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="beyond"):
    """The same items, standing where the map was not calibrated; the first 32 tokens of the continuation.

    Only of models whose frequencies change with the length: others say the same wherever the items stand.
    """

    offset: int
    """Position of the context's first token."""
    curve: tuple[Bin, ...]
    nll_per_token: dict[str, Figure]
    kl: dict[str, Figure]
    top1: dict[str, Figure]
    lost_top1: dict[str, Figure]
    """Inside less beyond, paired."""


class Longer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="longer"):
    """Items whose contexts have more tokens than positions were calibrated; in no other figure."""

    items: int
    documents: int
    continued_documents: int
    """Those with a continuation."""
    calibrated: int
    shortest: int
    """Tokens of the target in the shortest of the contexts, and in the longest."""
    longest: int
    nll_per_character: dict[str, Figure]
    kl: dict[str, Figure]
    top1: dict[str, Figure]
    """Over the first 32 tokens of the continuation."""
    gains: dict[str, Figure]
    floor_retention: Figure
    accuracy: dict[str, dict[str, Figure]]
    """By task and arm, as over the other items."""
    retention: Figure
    """Answers right, of the target's."""


class HoldBack(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver re-reads the context's last tokens; the first 32 tokens of the continuation."""

    tokens: int
    nll_per_token: dict[str, Figure]
    """Of mapped, and of none: only what is re-read."""
    top1: dict[str, Figure]
    gain: Figure
    """NLL a token of none less mapped: what the mapped KV adds to what is re-read."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What the target says after so many hand-offs, against having read all of it itself."""

    handoffs: int
    nll_difference: Figure
    kl: Figure
    top1: Figure


class Turns(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="turns"):
    """A conversation that changes hands: source, target, source, target, ..."""

    turn_tokens: int
    turns: tuple[Turn, ...]
    slope_nll: Figure
    """Nats a token more with each hand-off; an interval above 0 says that errors add up."""
    slope_top1: Figure
    """Agreement with each hand-off."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with the map."""

    answer: str
    """use, use inside the calibrated positions, do not use."""
    usable: bool
    failed: bool
    """No better than a control: nothing carried over."""
    reasons: tuple[str, ...]
    thresholds: dict[str, float]
    longer: str = ""
    """The word on contexts that are longer than the calibrated positions, in a line of its own."""


class Required(msgspec.Struct, frozen=True, kw_only=True):
    """One --require, and whether it is met."""

    text: str
    name: str
    end: str
    """low: the lower end of the interval is what counts; high: the upper."""
    bound: float
    figure: Figure
    met: bool


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found. NLL and KL are in nats; differences are paired by document."""

    kvferry: str
    source: str
    target: str
    map: MapFacts
    settings: Settings
    gate: Gate
    arms: dict[str, Arm]
    documents: int
    """Like `items`, of those whose contexts are within the calibrated positions; `longer` counts its own."""
    items: dict[str, int]
    """By task; "items" are the user's."""
    figures: dict[str, Figure]
    """The figures that --require knows, all of the mapped arm. Here and in all that follows but `longer`: of
    items whose contexts are within the calibrated positions."""
    nll_per_character: dict[str, Figure]
    """Of the continuation, by arm: the measure that two tokenizers share."""
    nll_per_token: dict[str, Figure]
    kl: dict[str, Figure]
    """KL(target || arm) of the next token, mean over the continuation."""
    top1: dict[str, dict[str, Figure]]
    """Share of tokens whose likeliest next token is the target's, by horizon ("1", "32", "128") and arm."""
    gains: dict[str, Figure]
    """NLL a character of each other arm less the mapped one's: above 0 where mapped is better."""
    accuracy: dict[str, dict[str, Figure]]
    """By task and arm; "all" is over every item with choices."""
    exact: dict[str, dict[str, Figure]]
    """The same, of greedy answers that are the right one token for token."""
    accuracy_differences: dict[str, Figure]
    """Mapped less each other arm, over all items with choices."""
    curve: tuple[Bin, ...]
    beyond: Beyond | Refused
    hold_back: tuple[HoldBack, ...]
    turns: Turns | Refused
    longer: Longer | Refused = Refused(reason="written before such items were told apart")
    notes: tuple[str, ...]
    seconds: dict[str, float]
    verdict: Verdict
    required: tuple[Required, ...] = ()
