"""From what every arm made of every item to figures with intervals.

Owns which figure is a mean of what. A figure is a mean over items, each of which counts once however long it
is; its interval comes from resampling documents. The first token's agreement is a proportion of single
trials: it has Wilson's interval where each is of a document of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...runs.retention_summary import (
    ARMS,
    Beyond,
    Bin,
    Figure,
    HoldBack,
    Refused,
    Turn,
    Turns,
)
from .asking import SHORT, Asked
from .intervals import FEWEST, PairedBootstrap
from .scoring import Continued
from .turns import HandedOn, slope

__all__ = ["HORIZONS", "Continuations", "sum_turns"]

HORIZONS = (1, 32, 128)
"""Tokens of the continuation over which agreement is taken, or all of it where it is shorter."""

_BINS = ((1, 1), (2, 4), (5, 16), (17, 32), (33, 64), (65, 128))
_NOTHING = Refused(reason="no item has a continuation: give the task code, or items with one")


class Continuations:
    """The figures of items with a continuation."""

    def __init__(self, asked: Sequence[Asked], seed: int) -> None:
        self.asked = [one for one in asked if one.continued]
        documents = [one.item.document for one in self.asked]
        self._bootstrap = PairedBootstrap(documents, seed=seed)
        self._trials = PairedBootstrap(documents, seed=seed, trials=True)
        self.arms = [name for name in ARMS if any(name in one.continued for one in self.asked)]

    @property
    def documents(self) -> int:
        return len({one.item.document for one in self.asked})

    def by_arm(self, what: Callable[[Continued], float]) -> dict[str, Figure]:
        """A mean over items, for each arm that has it."""
        found = {
            name: self._bootstrap.mean(self._values(name, what))
            for name in self.arms
            if self._has(name, what)
        }
        return found

    def nll_per_character(self) -> dict[str, Figure]:
        return self.by_arm(lambda one: one.nll_per_character)

    def nll_per_token(self) -> dict[str, Figure]:
        return self.by_arm(lambda one: float(one.nll.mean()) if one.kl is not None else math.nan)

    def kl(self) -> dict[str, Figure]:
        return self.by_arm(_mean_kl)

    def top1(self, horizon: int) -> dict[str, Figure]:
        if horizon > 1:
            return self.by_arm(lambda one: _agreement(one, horizon))
        return {
            name: self._trials.proportion(self._values(name, _first_agreement))
            for name in self.arms
            if self._has(name, _first_agreement)
        }

    def difference(self, ours: str, theirs: str, what: Callable[[Continued], float]) -> Figure:
        """Mean of one arm less another's, paired."""
        if not self.asked:
            return _NOTHING
        return self._bootstrap.difference(self._values(ours, what), self._values(theirs, what))

    def gains(self) -> dict[str, Figure]:
        """NLL a character of every other arm less the mapped one's."""
        return {
            name: self.difference(name, "mapped", lambda one: one.nll_per_character)
            for name in self.arms
            if name != "mapped"
        }

    def floor_retention(self) -> Figure:
        """(none - mapped) / (none - target) of NLL: what is kept of what a context is worth."""
        return self._share("none", "target", "what the context is worth (NLL a character)")

    def gap_recovered(self) -> Figure:
        """(source - mapped) / (source - target) of NLL a character."""
        return self._share("source", "target", "the gap between source and target (NLL a character)")

    def curve(self) -> tuple[Bin, ...]:
        """The same along the continuation."""
        return self._curve(lambda one: one.continued, _BINS)

    def beyond(self, offset: int) -> Beyond | Refused:
        """What is left where the map was not calibrated."""
        if not self.asked:
            return _NOTHING
        arms = [name for name in ARMS if name in self.asked[0].beyond]

        def by_arm(what: Callable[[Continued], float]) -> dict[str, Figure]:
            return {
                name: self._bootstrap.mean([what(one.beyond[name]) for one in self.asked]) for name in arms
            }

        return Beyond(
            offset=offset,
            curve=self._curve(lambda one: one.beyond, _BINS[:4]),
            nll_per_token=by_arm(lambda one: float(one.nll.mean())),
            kl=by_arm(_mean_kl),
            top1=by_arm(lambda one: _agreement(one, SHORT)),
            lost_top1={
                name: self._bootstrap.difference(
                    [_agreement(one.continued[name], SHORT) for one in self.asked],
                    [_agreement(one.beyond[name], SHORT) for one in self.asked],
                )
                for name in arms
                if name != "target"
            },
        )

    def hold_back(self, tokens: int) -> HoldBack:
        """With so many tokens re-read. One token is what every arm reads."""

        def of(one: Asked, name: str) -> Continued:
            return one.continued[name] if tokens == 1 else one.held_back[tokens][name]

        def nll(one: Asked, name: str) -> float:
            return float(of(one, name).nll[:SHORT].mean())

        if not self.asked:
            return HoldBack(tokens=tokens, nll_per_token={}, top1={}, gain=_NOTHING)
        arms = ("mapped", "none")
        return HoldBack(
            tokens=tokens,
            nll_per_token={
                name: self._bootstrap.mean([nll(one, name) for one in self.asked]) for name in arms
            },
            top1={
                name: self._bootstrap.mean([_agreement(of(one, name), SHORT) for one in self.asked])
                for name in arms
            },
            gain=self._bootstrap.difference(
                [nll(one, "none") for one in self.asked], [nll(one, "mapped") for one in self.asked]
            ),
        )

    def _share(self, worse: str, better: str, what: str) -> Figure:
        if not self.asked:
            return _NOTHING
        bad, good, mapped = (
            np.array(self._values(name, lambda one: one.nll_per_character))
            for name in (worse, better, "mapped")
        )
        return self._bootstrap.ratio(bad - mapped, bad - good, what)

    def _values(self, name: str, what: Callable[[Continued], float]) -> list[float]:
        return [what(one.continued[name]) if name in one.continued else math.nan for one in self.asked]

    def _has(self, name: str, what: Callable[[Continued], float]) -> bool:
        return not all(math.isnan(value) for value in self._values(name, what))

    def _curve(
        self, of: Callable[[Asked], Mapping[str, Continued]], bins: Sequence[tuple[int, int]]
    ) -> tuple[Bin, ...]:
        found = []
        arms = [name for name in ARMS if self.asked and all(name in of(one) for one in self.asked)]
        for first, last in bins:
            part = slice(first - 1, last)

            def by_arm(
                what: Callable[[Continued], float], figure: Callable[[Sequence[float]], Figure]
            ) -> dict[str, Figure]:
                values = {name: [what(of(one)[name]) for one in self.asked] for name in arms}
                return {
                    name: figure(some)
                    for name, some in values.items()
                    if not all(math.isnan(value) for value in some)
                }

            mean = self._bootstrap.mean
            if nll := by_arm(partial(_nll_within, part=part), mean):
                kl = by_arm(partial(_kl_within, part=part), mean)
                # A single token's agreement is a trial.
                share = self._trials.proportion if first == last else mean
                top1 = by_arm(partial(_same_within, part=part), share)
                found.append(Bin(first=first, last=last, nll_per_token=nll, kl=kl, top1=top1))
        return tuple(found)


def sum_turns(found: Sequence[HandedOn], turn_tokens: int, seed: int) -> Turns | Refused:
    """Every hand-off of the conversations, and the slope over them."""
    if len({one.document for one in found}) < FEWEST:
        return Refused(
            reason=f"{len(found)} texts are long enough for a conversation; {FEWEST} at least are needed "
            "(--limit, --items)"
        )
    bootstrap = PairedBootstrap([one.document for one in found], seed=seed)
    count = len(found[0].kl)
    return Turns(
        turn_tokens=turn_tokens,
        turns=tuple(
            Turn(
                handoffs=at + 1,
                nll_difference=bootstrap.mean([one.nll_difference[at] for one in found]),
                kl=bootstrap.mean([one.kl[at] for one in found]),
                top1=bootstrap.mean([one.top1[at] for one in found]),
            )
            for at in range(count)
        ),
        slope_nll=bootstrap.mean([slope(one.nll_difference) for one in found]),
        slope_top1=bootstrap.mean([slope(one.top1) for one in found]),
    )


def _agreement(one: Continued, horizon: int) -> float:
    return math.nan if one.same is None else _mean(one.same[:horizon])


def _first_agreement(one: Continued) -> float:
    return _agreement(one, 1)


def _mean_kl(one: Continued) -> float:
    return math.nan if one.kl is None else _mean(one.kl)


def _nll_within(one: Continued, part: slice) -> float:
    """Of the target's tokens: a source of other tokens has none."""
    return math.nan if one.kl is None else _mean(one.nll[part])


def _kl_within(one: Continued, part: slice) -> float:
    return math.nan if one.kl is None else _mean(one.kl[part])


def _same_within(one: Continued, part: slice) -> float:
    return math.nan if one.same is None else _mean(one.same[part])


def _mean(values: NDArray[np.float32]) -> float:
    return float(values.mean()) if values.size else math.nan
