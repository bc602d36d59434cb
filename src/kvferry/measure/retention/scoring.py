"""One item in one arm: how likely its continuation is, how like the target's own say, which choice it takes.

Owns the figures of an item. Everything is teacher-forced: each arm reads the same text, token by token, and
is asked before each one. The text is the item's own continuation, not what a model would have made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .arms import Handed, Held
from .items import Item
from .reader import Reader

__all__ = ["Chosen", "Continued", "Question", "choose", "continue_text", "question_of", "reread_of"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Continued:
    """A continuation in one arm, token by token."""

    nll: Floats
    """Nats, [tokens] of the arm's own tokenizer."""
    characters: int
    kl: Floats | None = None
    """KL(target || arm) before each token; None where the two have other tokenizers."""
    same: Floats | None = None
    """1 where the likeliest token is the target's."""

    @property
    def nll_per_character(self) -> float:
        return float(self.nll.sum()) / self.characters


@dataclass(frozen=True, slots=True)
class Question:
    """A question's choices in one model's tokens: each row holds what is read behind the context."""

    shared: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    """Where the choice begins in each row."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A question in one arm."""

    right: bool
    exact: bool
    """Greedy decoding would say the right choice, token for token."""


def continue_text(
    reader: Reader,
    held: Held,
    reread: Sequence[int],
    ids: Sequence[int],
    characters: int,
    beside: torch.Tensor | None = None,
    *,
    comparable: bool = True,
) -> tuple[Continued, torch.Tensor]:
    """The continuation `ids` in an arm whose receiver reads `reread` first.

    `beside` are the target's own log-probabilities; without them the arm is the target itself. An arm of
    another tokenizer is not `comparable`; where only the sizes of two padded vocabularies differ, both are
    compared over the tokens that both have. The arm's log-probabilities are given back, [tokens, vocabulary].
    """
    (said,) = reader.behind(held.layers, held.offset + held.tokens, reread, [ids])
    nll = -said.gather(1, torch.tensor(list(ids), device=said.device)[:, None])[:, 0]
    reference = said if beside is None else beside[: said.shape[0]]
    kl = same = None
    if comparable:
        theirs, ours = _over_shared(reference, said)
        kl = (theirs.exp() * (theirs - ours)).sum(-1).clamp_min(0).cpu().numpy()
        same = (theirs.argmax(-1) == ours.argmax(-1)).float().cpu().numpy()
    return Continued(nll.cpu().numpy(), characters, kl, same), said


def question_of(reader: Reader, item: Item) -> Question:
    """The question and its choices as tokens behind the item's context."""
    rows = [reader.continued(item.context, item.question + choice) for choice in item.choices]
    asked = reader.continued(item.context, item.question) if item.question else ()
    starts = [min(_common(row, asked), len(row) - 1) for row in rows]
    shared = min([*starts, *(_common(row, rows[0]) for row in rows[1:])])
    return Question(
        rows[0][:shared],
        tuple(row[shared:] for row in rows),
        tuple(start - shared for start in starts),
    )


def choose(reader: Reader, held: Held, reread: Sequence[int], question: Question, item: Item) -> Chosen:
    """The choice that is likeliest by character, and whether greedy decoding says the right one."""
    said = reader.behind(held.layers, held.offset + held.tokens, [*reread, *question.shared], question.rows)
    scores, exact = [], False
    for at, (row, logp, start) in enumerate(zip(question.rows, said, question.starts, strict=True)):
        ids = torch.tensor(row[start:], device=logp.device)
        part = logp[start:]
        scores.append(float(part.gather(1, ids[:, None]).sum()) / len(item.choices[at]))
        if at == item.answer:
            exact = bool((part.argmax(-1) == ids).all())
    return Chosen(int(np.argmax(scores)) == item.answer, exact)


def reread_of(handed: Handed, name: str, hold_back: int) -> tuple[Held, tuple[int, ...]]:
    """What the arm keeps of its context, and the tokens that its receiver reads itself."""
    ids = handed.context.target_ids
    tail = ids[max(handed.opening, len(ids) - hold_back) :] or ids[-1:]
    held = handed.arms[name]
    if held.layers is None:
        return held, (*ids[: handed.opening], *tail)
    return held.without_last(len(tail)), tail


def _over_shared(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities over the columns that both have, renormalised where one has more."""
    if first.shape[1] == second.shape[1]:
        return first, second
    size = min(first.shape[1], second.shape[1])
    return torch.log_softmax(first[:, :size], dim=-1), torch.log_softmax(second[:, :size], dim=-1)


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
