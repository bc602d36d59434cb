"""How far items reach, and whether standing further behind could change anything.

Owns positions: the longest item, the models' own ends, and where items are put to stand beyond the calibrated
positions. Where every arm is moved by the same way, keys that are turned by distance give the same scores as
before; such a comparison would be of a thing with itself, so it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engines.transformers.capture import Captured
from ...errors import UsageError
from ...handoff.mapping.rope import Rope
from ...runs.retention_summary import Refused
from .items import Item
from .reader import Reader

__all__ = ["far_offset", "reach_of", "shift_is_seen"]

_FAR = 4
"""Beyond begins at so many times the calibrated positions, where the models' own positions reach."""

_BY_DISTANCE = (
    "these models see distances alone there, so the same items standing further behind would say the same; "
    "it takes longer contexts, which are judged apart (longer_top1)"
)


def reach_of(items: Sequence[Item], readers: Sequence[Reader], continuation_tokens: int) -> int:
    """The most positions that an item takes in any of the models.

    Raises `UsageError` for an item that goes on behind the last position that a model knows.
    """
    longest = 0
    for reader in readers:
        end = _end(reader.model)
        for item in items:
            reach = _tokens(item, reader, continuation_tokens)
            if end is not None and reach > end:
                raise UsageError(
                    f"an item of {item.document!r} ({item.task}) takes {reach:,} positions, and "
                    f"{reader.kv.name} ends at {end:,}: shorten it (--items), or lower --context-tokens or "
                    "--longer-tokens"
                )
            longest = max(longest, reach)
    return longest


def far_offset(calibrated: int | None, models: Sequence[Captured], reach: int) -> int | Refused:
    """Where items of `reach` positions stand beyond what was calibrated, or why they do not."""
    if calibrated is None:
        return Refused(reason="the map does not say which positions it was calibrated on")
    ropes = [layer.rope for model in models for layer in model.kv.layers]
    if not any(rope.varies for rope in ropes):
        return Refused(reason=_BY_DISTANCE)
    room = min(
        [end for model in models if (end := _end(model)) is not None], default=_FAR * calibrated + reach
    )
    found = min(_FAR * calibrated, room - reach)
    if found < calibrated:
        return Refused(
            reason=f"the models' positions end at {room:,}: no room beyond the {calibrated:,} calibrated"
        )
    return found if shift_is_seen(ropes, reach, found + reach) else Refused(reason=_BY_DISTANCE)


def shift_is_seen(ropes: Sequence[Rope], inside: int, beyond: int) -> bool:
    """Whether any layer turns by other frequencies in a sequence of the length `beyond` than of `inside`."""
    return any(not torch.equal(rope.frequencies(inside), rope.frequencies(beyond)) for rope in ropes)


def _end(model: Captured) -> int | None:
    """Positions that the model knows; None where its configuration does not say."""
    found = getattr(model.config, "max_position_embeddings", None)
    return int(found) if found else None


def _tokens(item: Item, reader: Reader, continuation_tokens: int) -> int:
    context = len(reader.tokens(item.context)[0])
    if item.is_choice:
        return context + max(
            len(reader.continued(item.context, item.question + choice)) for choice in item.choices
        )
    return context + min(continuation_tokens, len(reader.continued(item.context, item.continuation)))
