"""Contexts that are longer than what a map was calibrated on, apart from those that are not.

Owns which items are such, and their figures. There the map is applied to positions that calibration never
saw, which no shift of shorter items can show; so these items are in no other figure, and have intervals of
their own. How far the map holds is known up to the longest of them, and no further.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.retention_summary import Longer, Refused
from .answers import Choices
from .asking import SHORT, Asked
from .items import Item
from .reader import Reader
from .summing import Continuations

__all__ = ["is_longer", "sum_longer"]


def is_longer(item: Item, target: Reader, calibrated: int | None) -> bool:
    """Whether the item's context has more tokens of the target than positions were calibrated."""
    return calibrated is not None and len(target.tokens(item.context)[0]) > calibrated


def sum_longer(asked: Sequence[Asked], calibrated: int | None, seed: int) -> Longer | Refused:
    """The figures of items that are all longer, or why there are none."""
    if calibrated is None:
        return Refused(reason="the map does not say which positions it was calibrated on")
    if not asked:
        return Refused(
            reason=f"no item has a context of more than the {calibrated:,} calibrated positions "
            "(--longer-tokens, --items)"
        )
    continued, chosen = Continuations(asked, seed), Choices(asked, seed)
    lengths = [one.context_tokens for one in asked]
    return Longer(
        items=len(asked),
        documents=len({one.item.document for one in asked}),
        continued_documents=continued.documents,
        calibrated=calibrated,
        shortest=min(lengths),
        longest=max(lengths),
        nll_per_character=continued.nll_per_character(),
        kl=continued.kl(),
        top1=continued.top1(SHORT),
        gains=continued.gains(),
        floor_retention=continued.floor_retention(),
        accuracy=chosen.accuracy(),
        retention=chosen.retention(),
    )
