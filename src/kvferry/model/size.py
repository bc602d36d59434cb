"""What a model's KV cache weighs for an engine and a layout: the answer of `kvferry size`.

Owns joining the parts: the model's layers, an engine's layout, the naive figure beside them. Two numbers
carry it, because one is wrong for every hybrid: growing bytes per token, and fixed bytes per request. Both
are what the model needs; what an engine sets aside beyond that (whole blocks, padding, room for a step) is
`reserved_bytes`. Everything named without `_total` is for one rank: the fullest, where pipeline stages
differ.
"""

from __future__ import annotations

import msgspec

from .layers import Attention, Latent, Layer, Model
from .layouts.choose import layout_of
from .layouts.contract import Capacity, Layout, Pool
from .layouts.kept import Keeper, Kept, Rules
from .layouts.setup import Setup
from .naive import naive_bytes, naive_reasons

__all__ = ["LayerSize", "Size", "size_of"]


class LayerSize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer on one rank."""

    index: int
    kind: str
    growing_bytes_per_token: int
    fixed_bytes_per_request: int
    kv_heads: int | None = None
    """Of the model, before ranks; None without heads."""
    key_width: int | None = None
    """Of a head; of the latent and its rotary key for MLA."""
    value_width: int | None = None
    window: int | None = None
    shares: int | None = None
    """Index of the layer whose cache it reads."""
    state_bytes: int | None = None
    index_bytes: int | None = None
    draft: bool = False


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache weighs; bytes and tokens."""

    source: str
    architecture: str
    assumed: bool
    engine: str
    tp: int
    pp: int
    dcp: int
    key_dtype: str
    value_dtype: str
    growing_bytes_per_token: float
    growing_bytes_per_token_total: float
    fixed_bytes_per_request: int
    """States, and windows once they are full."""
    fixed_bytes_per_request_total: int
    block_tokens: int
    bytes_per_block: int
    bytes_per_block_total: int
    context: int | None
    request_bytes: int | None
    """One request of `context` tokens, without padding."""
    request_bytes_total: int | None
    reserved_bytes: int | None
    """What the engine sets aside for it."""
    memory_bytes: int | None
    blocks: int | None
    tokens: int | None
    """What the log calls the cache's size."""
    tokens_before: int | None
    tokens_after: int | None
    max_concurrency: float | None
    longest_context: int | None
    blocks_per_request: int | None
    naive_bytes_per_token: float
    naive_bytes_per_token_total: float
    naive_factor: float | None
    """Naive over growing; None where nothing grows."""
    naive_reasons: tuple[str, ...]
    pools: tuple[Pool, ...]
    log_lines: tuple[str, ...]
    notes: tuple[str, ...]
    layers: tuple[LayerSize, ...]


_EMPTY = Capacity(blocks=None, tokens=None)


def size_of(model: Model, setup: Setup, *, layers: bool = True) -> Size:
    """The size of a model's cache. `layers=False` leaves the list of layers empty, for speed.

    Raises `UsageError` for a setup that the engine does not have, and `ModelError` for a model that it
    cannot lay out or whose config lacks what it needs.
    """
    layout = layout_of(model, setup)
    context = setup.context or model.context
    kept = layout.kept
    growing = [one.growing_bytes for one in kept]
    fixed = [one.fixed_bytes for one in kept]
    whole = sum(growing)
    keeper = Keeper(model, setup, _auto(setup))
    naive = naive_bytes(model, keeper.key_type, keeper.value_type)
    fits = _EMPTY if setup.memory_bytes is None else layout.capacity(setup.memory_bytes, context)
    at_context = None if context is None else [one.at(context) for one in kept]
    notes = [*model.notes, *layout.notes]
    if setup.context is None and model.context is not None:
        notes.append(f"the longest context is the model's own, {model.context:,}; say --context for another")
    if setup.context is not None and model.context is not None and setup.context > model.context:
        notes.append(
            f"a context of {setup.context:,} exceeds the {model.context:,} positions in the model's config"
        )
    return Size(
        source=model.source,
        architecture=model.architecture,
        assumed=model.assumed,
        engine=setup.engine,
        tp=setup.tp,
        pp=setup.pp,
        dcp=setup.dcp,
        key_dtype=keeper.key_type.name,
        value_dtype=keeper.value_type.name,
        growing_bytes_per_token=_whole(_fullest(layout, growing) / setup.dcp),
        growing_bytes_per_token_total=_whole(whole * setup.tp / setup.dcp),
        fixed_bytes_per_request=_fullest(layout, fixed),
        fixed_bytes_per_request_total=sum(fixed) * setup.tp,
        block_tokens=layout.block_tokens,
        bytes_per_block=layout.bytes_per_block,
        bytes_per_block_total=layout.bytes_per_block_total,
        context=context,
        request_bytes=None if at_context is None else -(-_fullest(layout, at_context) // setup.dcp),
        request_bytes_total=None if at_context is None else -(-sum(at_context) * setup.tp // setup.dcp),
        reserved_bytes=None if context is None else layout.reserved_bytes(context),
        memory_bytes=setup.memory_bytes,
        blocks=fits.blocks,
        tokens=fits.tokens,
        tokens_before=fits.tokens_before,
        tokens_after=fits.tokens_after,
        max_concurrency=fits.max_concurrency,
        longest_context=fits.longest_context,
        blocks_per_request=fits.blocks_per_request,
        naive_bytes_per_token=_whole(naive / setup.tp / setup.pp),
        naive_bytes_per_token_total=_whole(naive),
        naive_factor=naive / setup.tp / whole if whole else None,
        naive_reasons=tuple(naive_reasons(model, setup, kept)),
        pools=tuple(layout.pools),
        log_lines=tuple(layout.lines(setup.memory_bytes, context)),
        notes=tuple(notes),
        layers=tuple(_layer_sizes(model, kept)) if layers else (),
    )


def _auto(setup: Setup) -> Rules:
    return Rules(auto="float16") if setup.engine == "llama.cpp" else Rules()


def _fullest(layout: Layout, sizes: list[int]) -> int:
    return max(sum(sizes[index] for index in stage) for stage in layout.stages)


def _layer_sizes(model: Model, kept: list[Kept]) -> list[LayerSize]:
    drafts = [Layer()] * (len(kept) - len(model.layers))
    found = []
    for index, (layer, one) in enumerate(zip([*model.layers, *drafts], kept, strict=True)):
        part = layer.attention
        heads = width = values = window = None
        if isinstance(part, Attention):
            heads, width, values, window = part.kv_heads, part.key_width, part.value_width, part.window
        elif isinstance(part, Latent):
            width = part.width
        found.append(
            LayerSize(
                index=index,
                kind="draft" if index >= len(model.layers) else layer.kind,
                growing_bytes_per_token=one.growing_bytes,
                fixed_bytes_per_request=one.fixed_bytes,
                kv_heads=heads,
                key_width=width,
                value_width=values,
                window=window,
                shares=layer.shares,
                state_bytes=one.state_bytes or None,
                index_bytes=one.index_bytes or None,
                draft=index >= len(model.layers),
            )
        )
    return found


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value
