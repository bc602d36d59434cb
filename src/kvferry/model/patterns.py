"""Which layer is what: from the many ways in which configs say it to one list of kinds.

Owns the forms, tried in a fixed order; the first that is there decides, for every architecture alike. A
kind is one of `full`, `indexed`, `sliding`, `chunked`, `linear`, `conv`, `hybrid`, `hybrid_sliding` and
`none`; what a `linear` layer really is follows from other fields (`parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import ModelError
from .families import UNNAMED, Family
from .fields import Fields
from .names import LAYER_COUNT

__all__ = ["layer_kinds"]

_KINDS = {
    **dict.fromkeys(("full_attention", "attention", "global", "global_attention", "full", "*", "G"), "full"),
    **dict.fromkeys(("sliding_attention", "local", "local_attention", "sliding", "swa", "L"), "sliding"),
    "chunked_attention": "chunked",
    **dict.fromkeys(("indexed_attention", "deepseek_sparse_attention"), "indexed"),
    **dict.fromkeys(
        ("linear_attention", "linear", "mamba", "mamba2", "recurrent", "kda", "gdn", "M"), "linear"
    ),
    **dict.fromkeys(("conv", "short_conv"), "conv"),
    **dict.fromkeys(("moe", "mlp", "none", "-", "E"), "none"),
    "hybrid": "hybrid",
    "hybrid_sliding": "hybrid_sliding",
}
"""From the words of configs to kinds."""

_COUNTED = {
    "full_attention_layers": "full",
    "attention_layers": "full",
    "full_layers": "full",
    "own_full_layers": "full",
    "mla_layers": "full",
    "sliding_layers": "sliding",
    "own_sliding_layers": "sliding",
    "chunked_layers": "chunked",
    "linear_layers": "linear",
    "kda_layers": "linear",
    "mamba_layers": "linear",
    "conv_layers": "conv",
}
"""Fields of a description that only counts its layers."""


def layer_kinds(fields: Fields, family: Family) -> list[str]:
    """The kind of every layer, first to last. Raises `ModelError` where the config does not say."""
    count = fields.maybe_number(*LAYER_COUNT)
    if count is not None and count > _MOST_LAYERS:
        raise ModelError(f"{fields.source}: {LAYER_COUNT[0]} is {count}; no model has so many layers")
    for read in _FORMS:
        kinds = read(fields, count)
        if kinds is not None:
            if count is not None and len(kinds) != count:
                raise ModelError(
                    f"{fields.source}: {LAYER_COUNT[0]} is {count}, but its list of layers has {len(kinds)}"
                )
            return kinds
    if family.needs and not any(_says(fields, name) for name in family.needs) and not _windowless(fields):
        raise fields.missing(*family.needs, why="nothing else says which layers are what")
    if count is None:
        raise fields.missing(*LAYER_COUNT)
    if family.parallel or family.pure:
        return ["hybrid" if family.parallel else "linear"] * count
    if family.every:
        return ["full" if (i + 1) % family.every == 0 else "sliding" for i in range(count)]
    return _windowed(fields, family, count)


_MOST_LAYERS = 10_000
_MAY_BE_NULL = ("sliding_window", "use_sliding_window", "use_cla", "multi_query")


def _says(fields: Fields, name: str) -> bool:
    if name in _MAY_BE_NULL:
        return fields.states(name)
    return fields.raw(name) not in (None, [])


def _windowless(fields: Fields) -> bool:
    """Whether the config says that there is no window, so that no pattern is needed."""
    return fields.states("sliding_window") and "sliding_window" not in fields


def _named(fields: Fields, name: str, words: Iterable[Any]) -> list[str]:
    kinds = []
    for place, word in enumerate(words):
        kind = _KINDS.get(word) if isinstance(word, str) else None
        if kind is None:
            raise ModelError(
                f"{fields.source}: {name}[{place}] is {word!r}, a kind of layer that is not known here; "
                "with --assume dense only the naive figure is computed"
            )
        kinds.append(kind)
    return kinds


def _listed(fields: Fields, count: int | None) -> list[str] | None:
    for name in ("layer_types", "layers_block_type"):
        words = fields.sequence(name)
        if words:
            return _named(fields, name, words)
    return None


def _hybrid_ids(fields: Fields, count: int | None) -> list[str] | None:
    ids = fields.sequence("hybrid_layer_ids")
    if ids is None or count is None:
        return None
    chosen = set(ids)
    return ["hybrid" if i in chosen else "linear" for i in range(count)]


def _letters(fields: Fields, count: int | None) -> list[str] | None:
    word = fields.text("hybrid_override_pattern")
    return None if word is None else _named(fields, "hybrid_override_pattern", word)


def _numbered(fields: Fields, count: int | None) -> list[str] | None:
    """Kimi Linear: two lists of layer numbers, the first layer being 1."""
    section = fields.section("linear_attn_config")
    if section is None:
        return None
    full, linear = section.sequence("full_attn_layers"), section.sequence("kda_layers")
    if full is None or linear is None:
        raise section.missing("full_attn_layers" if full is None else "kda_layers")
    kinds = dict.fromkeys(full, "full") | dict.fromkeys(linear, "linear")
    if sorted(kinds) != list(range(1, len(full) + len(linear) + 1)):
        raise ModelError(f"{section.source}: full_attn_layers and kda_layers do not number every layer once")
    return [kinds[number] for number in sorted(kinds)]


def _flagged(fields: Fields, count: int | None) -> list[str] | None:
    """Lists of 0 and 1, in which 1 stands for what each name says."""
    for name, one, other in (
        ("hybrid_layer_pattern", "sliding", "full"),
        ("attn_type_list", "full", "linear"),
        ("no_rope_layers", "chunked", "full"),
    ):
        flags = fields.sequence(name)
        if flags:
            return [one if flag else other for flag in flags]
    return None


def _at_indices(fields: Fields, count: int | None) -> list[str] | None:
    for name, other in (("attn_layer_indices", "linear"), ("full_attn_idxs", "conv")):
        places = fields.sequence(name)
        if places is not None and count is not None:
            chosen = set(places)
            return ["full" if i in chosen else other for i in range(count)]
    return None


def _repeated(fields: Fields, count: int | None) -> list[str] | None:
    """RecurrentGemma: a short list that repeats, whose attention slides."""
    for name in ("block_types", "_block_types"):
        words = fields.sequence(name)
        if words and count is not None:
            kinds = _named(fields, name, words)
            slides = "attention_window_size" in fields
            return [
                "sliding" if (kind := kinds[i % len(kinds)]) == "full" and slides else kind
                for i in range(count)
            ]
    return None


def _searched(fields: Fields, count: int | None) -> list[str] | None:
    """Models found by architecture search: an object a layer, in which attention may be absent."""
    blocks = fields.sequence("block_configs")
    if blocks is None:
        return None
    kinds: list[str] = []
    for block in blocks:
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise ModelError(f"{fields.source}: block_configs[{len(kinds)}] has no object 'attention'")
        gone = attention.get("no_op") or attention.get("replace_with_linear")
        kinds.append("none" if gone else "full")
    return kinds


def _periodic(fields: Fields, count: int | None) -> list[str] | None:
    if count is None:
        return None
    if (period := fields.maybe_number("attn_layer_period")) is not None:
        offset = fields.raw("attn_layer_offset")
        if not isinstance(offset, int):
            raise fields.missing("attn_layer_offset")
        return ["full" if i % period == offset else "linear" for i in range(count)]
    for name, other in (
        ("full_attention_interval", "linear"),
        ("global_attn_every_n_layers", "sliding"),
        ("no_rope_layer_interval", "chunked"),
    ):
        if (interval := fields.maybe_number(name)) is not None:
            return ["full" if (i + 1) % interval == 0 else other for i in range(count)]
    return None


def _sliding_pattern(fields: Fields, count: int | None) -> list[str] | None:
    """Every n-th layer is full; or letters that repeat (LLLG)."""
    pattern = fields.raw("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None or count is None or _windowless(fields):
        return None
    if "sliding_window" not in fields:
        raise fields.missing("sliding_window", why="the config has a pattern of sliding layers")
    if isinstance(pattern, str):
        kinds = _named(fields, "sliding_window_pattern", pattern)
        return [kinds[i % len(kinds)] for i in range(count)]
    every = fields.number("sliding_window_pattern", "_sliding_window_pattern")
    return ["full" if (i + 1) % every == 0 else "sliding" for i in range(count)]


def _counted(fields: Fields, count: int | None) -> list[str] | None:
    """A description that counts its layers, spread evenly; what is left of num_hidden_layers keeps nothing.

    Where it counts the layers with a cache of their `own`, those that share are among the rest.
    """
    found = [(kind, fields.number(name)) for name, kind in _COUNTED.items() if name in fields]
    if not found:
        return None
    counted = sum(number for _, number in found)
    if counted > _MOST_LAYERS:
        raise ModelError(f"{fields.source}: its layers are counted as {counted}; no model has so many")
    left = 0 if count is None else count - counted
    if left < 0:
        raise ModelError(
            f"{fields.source}: its layers are counted as {counted}, but {LAYER_COUNT[0]} is {count}"
        )
    return _spread([*found, ("none", left)] if left else found)


def _spread(found: Sequence[tuple[str, int]]) -> list[str]:
    places = [
        ((place + 0.5) / number, order, kind)
        for order, (kind, number) in enumerate(found)
        for place in range(number)
    ]
    return [kind for _, _, kind in sorted(places)]


def _windowed(fields: Fields, family: Family, count: int) -> list[str]:
    """No pattern at all: a window holds for every layer, unless it is switched off or begins later."""
    if "attention_chunk_size" in fields:
        return ["chunked"] * count
    if not fields.raw("sliding_window"):
        return ["full"] * count
    if not fields.states("use_sliding_window"):
        if family is UNNAMED:
            raise fields.missing("layer_types", "sliding_window_pattern", why="it has a sliding_window")
        return ["sliding"] * count
    if not fields.flag("use_sliding_window"):
        return ["full"] * count
    begins = fields.raw("max_window_layers")
    if not isinstance(begins, int):
        raise fields.missing("max_window_layers", why="use_sliding_window is on")
    return ["sliding" if i >= begins else "full" for i in range(count)]


_FORMS: tuple[Callable[[Fields, int | None], list[str] | None], ...] = (
    _listed,
    _letters,
    _numbered,
    _hybrid_ids,
    _flagged,
    _at_indices,
    _repeated,
    _searched,
    _periodic,
    _sliding_pattern,
    _counted,
)
