"""The textbook's figure 2 L Hkv D q, by which factor it is wrong for a model, and why.

Owns the explanation. The formula takes every layer for full attention with one number of heads and one
width, and every rank for an equal share; each way in which a model or an engine is otherwise is one reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .dtypes import KvType
from .layers import Attention, Latent, Model
from .layouts.kept import Kept
from .layouts.setup import Setup

__all__ = ["naive_bytes", "naive_reasons"]


def naive_bytes(model: Model, key_type: KvType, value_type: KvType) -> float:
    """2 L Hkv D q for the whole model, with the bytes of K and of V."""
    numbers = model.naive.layers * model.naive.kv_heads * model.naive.head_dim
    return numbers * (
        key_type.block_bytes / key_type.block_numbers + value_type.block_bytes / value_type.block_numbers
    )


def naive_reasons(model: Model, setup: Setup, kept: Sequence[Kept]) -> list[str]:
    """Why the formula is off, in the order of what matters most; empty where it is right."""
    found = [*_kinds(model, kept), *_widths(model, setup, kept), *_ranks(model, setup)]
    if setup.draft_layers:
        found.append(f"{_layers(setup.draft_layers)} of a draft head are added")
    derived, width = model.naive.derived_head_dim, model.naive.head_dim
    if (
        derived
        and width
        and derived != width
        and not any(isinstance(layer.attention, Latent) for layer in model.layers)
    ):
        found.append(
            f"head_dim is {width}; with hidden_size / heads = {derived} in its place the formula would give "
            f"{derived / width:.3g} of this figure"
        )
    return found


def _kinds(model: Model, kept: Sequence[Kept]) -> list[str]:
    count = len(model.layers)
    found = []
    stateful = sum(one.state_bytes > 0 and not one.token_bytes for one in kept)
    if stateful:
        found.append(f"{stateful} of {count} layers keep a state of fixed size and no cache that grows")
    both = sum(one.state_bytes > 0 and one.token_bytes > 0 for one in kept)
    if both:
        found.append(f"{_layers(both)} keep a state beside their cache")
    windows = Counter(one.window for one in kept if one.window is not None)
    for window, number in sorted(windows.items()):
        found.append(f"{number} of {count} layers stop growing at {window:,} tokens")
    pairs = list(zip(model.layers, kept, strict=False))
    shared = sum(layer.shares is not None and not one.token_bytes for layer, one in pairs)
    if shared:
        found.append(f"{_layers(shared)} read another layer's cache and keep none")
    bare = sum(layer.kind == "none" for layer in model.layers)
    if bare and count <= model.naive.layers:
        found.append(f"{bare} of {count} layers have no attention")
    return found


def _widths(model: Model, setup: Setup, kept: Sequence[Kept]) -> list[str]:
    found = []
    latents = [layer.attention for layer in model.layers if isinstance(layer.attention, Latent)]
    if latents:
        latent = latents[0]
        if any(one.latent for one in kept):
            copies = (
                " and the latent once more" if any(one.latent and one.value_bytes for one in kept) else ""
            )
            found.append(
                f"MLA keeps one latent of {latent.rank} + {latent.rope_width} numbers a token{copies}, "
                f"not keys and values of {latent.heads} heads"
            )
            if setup.tp > 1:
                found.append(f"the latent lies on each of {setup.tp} ranks undivided")
        else:
            found.append("this engine keeps the expanded heads of MLA, whose keys and values differ in width")
    if any(one.index_bytes for one in kept):
        found.append(f"a sparse indexer adds {max(one.index_bytes for one in kept)} bytes a token and layer")
    shapes = Counter(
        (part.kv_heads, part.key_width, part.value_width)
        for layer in model.layers
        if isinstance(part := layer.attention, Attention) and layer.shares is None
    )
    plain = (model.naive.kv_heads, model.naive.head_dim, model.naive.head_dim)
    for (heads, key_width, value_width), number in shapes.items():
        if (heads, key_width, value_width) != plain:
            width = f"{key_width}" if key_width == value_width else f"{key_width} (K) and {value_width} (V)"
            found.append(f"{_layers(number)} have {heads} KV heads of width {width}")
    return found


def _ranks(model: Model, setup: Setup) -> list[str]:
    heads = [layer.attention.kv_heads for layer in model.layers if isinstance(layer.attention, Attention)]
    copied = max((setup.tp // one for one in heads if setup.tp > one), default=0)
    if copied > 1:
        return [f"{min(heads)} KV heads on {setup.tp} ranks: each is held {copied} times"]
    return []


def _layers(number: int) -> str:
    return f"{number} layer{'s' if number != 1 else ''}"
