"""Carrying the KV of a context against computing it again: seconds by channel and codec.

Owns the matrix. The bytes are those of one copy of the cache, whatever the ranks replicate; states travel
in their own dtype. A transfer is bytes / rate, and for a hand-off to another model the mapper's bytes /
rate once more; no look-up, queue or installation: this is the bound below which no measurement can come.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .channels import Channel, Codec
from .layers import Attention, Latent, Model
from .prefill import attention_flop, linear_flop

__all__ = ["Crossing", "Prefill", "Transfer", "numbers_at", "transfer_table"]


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """What computing the context takes."""

    parameters: float
    linear_flop: float
    attention_flop: float | None
    """What attention adds; None where the config does not say enough."""
    flop_per_second: float | None
    linear_seconds: float | None
    """2 N n / F: the rule that leaves attention out."""
    seconds: float | None
    """With attention counted."""

    @property
    def attention_share(self) -> float | None:
        """What attention adds, relative to the linear rule."""
        return None if self.attention_flop is None else self.attention_flop / self.linear_flop


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """One codec over one channel."""

    codec: str
    channel: str
    bytes_per_second: float
    source: str
    bytes: float
    transfer_seconds: float
    mapper_seconds: float
    ready_seconds: float
    """Transfer and mapper; also the prefill time at which carrying and computing break even."""
    break_even_flop_per_second: float | None
    """A receiver that computes faster should compute (attention counted); None without a prefill."""
    linear_break_even_flop_per_second: float | None
    speedup: float | None
    """Prefill, attention counted, over ready."""
    linear_speedup: float | None
    rule_holds: bool | None
    """The seed's rule: the channel takes under a second and the prefill more than one."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole matrix for one context."""

    context: int
    prefill: Prefill | None
    crossings: tuple[Crossing, ...]


def numbers_at(model: Model, tokens: int) -> int:
    """Numbers in the cache's growing and windowed parts for a context: one copy, shared layers once."""
    total = 0
    for layer in model.layers:
        part = layer.attention
        if part is None or layer.shares is not None:
            continue
        if isinstance(part, Latent):
            total += tokens * (part.width + (part.index_width or 0))
        else:
            held = tokens if part.window is None else min(tokens, part.window)
            total += held * _numbers(part)
    return total


def transfer_table(
    model: Model,
    context: int,
    *,
    channels: Sequence[Channel],
    codecs: Sequence[Codec],
    state_bytes: int = 0,
    parameters: float | None = None,
    flop_per_second: float | None = None,
    mapper_bytes_per_second: float | None = None,
) -> Transfer:
    """Every codec over every channel for a context of `context` tokens.

    `state_bytes` are carried beside, as they are. Without `parameters` (the model's, or given) there is no
    prefill, and only bytes and seconds are filled in.
    """
    weights = model.parameters if parameters is None else parameters
    prefill = None if weights is None else _prefill(model, context, weights, flop_per_second)
    numbers = numbers_at(model, context)
    crossings = tuple(
        _crossing(
            codec,
            channel,
            numbers * codec.bytes_per_number + state_bytes,
            prefill,
            mapper_bytes_per_second,
        )
        for codec in codecs
        for channel in channels
    )
    return Transfer(context=context, prefill=prefill, crossings=crossings)


def _prefill(model: Model, context: int, weights: float, flop_per_second: float | None) -> Prefill:
    linear, attention = linear_flop(weights, context), attention_flop(model, context)
    rate = flop_per_second
    return Prefill(
        parameters=weights,
        linear_flop=linear,
        attention_flop=attention,
        flop_per_second=rate,
        linear_seconds=None if rate is None else linear / rate,
        seconds=None if rate is None or attention is None else (linear + attention) / rate,
    )


def _crossing(
    codec: Codec, channel: Channel, size: float, prefill: Prefill | None, mapper: float | None
) -> Crossing:
    transfer = size / channel.bytes_per_second
    mapping = 0.0 if mapper is None else size / mapper
    ready = transfer + mapping
    counted = linear = None
    if prefill is not None:
        linear = prefill.linear_flop
        counted = None if prefill.attention_flop is None else linear + prefill.attention_flop
    seconds = None if prefill is None else prefill.seconds
    linear_seconds = None if prefill is None else prefill.linear_seconds
    return Crossing(
        codec=codec.name,
        channel=channel.name,
        bytes_per_second=channel.bytes_per_second,
        source=channel.source,
        bytes=size,
        transfer_seconds=transfer,
        mapper_seconds=mapping,
        ready_seconds=ready,
        break_even_flop_per_second=_over(counted, ready),
        linear_break_even_flop_per_second=_over(linear, ready),
        speedup=_over(seconds, ready),
        linear_speedup=_over(linear_seconds, ready),
        rule_holds=None if seconds is None else transfer < 1.0 < seconds,
    )


def _over(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds == 0.0 else amount / seconds


def _numbers(part: Attention) -> int:
    return part.kv_heads * (part.key_width + part.value_width)
