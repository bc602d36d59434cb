"""The rope of each layer, read from a model's configuration.

Owns the spellings: one table for all layers or one for each kind, older files that name theta and scaling
apart, families that turn neighbouring numbers, and layers that turn nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ModelError
from .rope import KINDS, Rope

__all__ = ["ropes_of"]

_INTERLEAVED = frozenset(
    {"cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium"}
)
"""Families that turn the pairs (0, 1), (2, 3), ...; all others turn (0, w/2), (1, w/2 + 1), ..."""


def ropes_of(config: Mapping[str, Any]) -> tuple[Rope, ...]:
    """The rope of every layer, from a model's text configuration (config.json, or as an engine completes it).

    Raises `ModelError` where a scaling is not known or a field is missing: no class's default is assumed.
    """
    layers = _number(config, "num_hidden_layers")
    kinds = config.get("layer_types") or ["full_attention"] * layers
    if len(kinds) != layers:
        raise ModelError(f"layer_types names {len(kinds)} layers, num_hidden_layers {layers}")
    return tuple(_rope_of_layer(config, kinds, index) for index in range(layers))


def _rope_of_layer(config: Mapping[str, Any], kinds: Sequence[str], index: int) -> Rope:
    width = config.get("head_dim") or _number(config, "hidden_size") // _number(config, "num_attention_heads")
    if _turns_nothing(config, kinds[index], index):
        return Rope(kind="none", width=width, rotated=0)
    fields = _fields_of_layer(config, kinds[index])
    kind = str(fields.get("rope_type") or fields.get("type") or "default")
    if kind not in KINDS:
        raise ModelError(f"rope type {kind!r} of layer {index} is not known; known: {', '.join(KINDS)}")
    share = float(fields.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    rotated = width if kind == "proportional" else int(width * share)
    longest = int(config.get("max_position_embeddings") or 0)
    # A length outside the rope's own table is the authors' last word (Phi-3 writes it there).
    original = int(
        config.get("original_max_position_embeddings")
        or fields.get("original_max_position_embeddings")
        or longest
    )
    factor = fields.get("factor")
    if factor is None:
        factor = longest / original if kind in ("yarn", "longrope") and original else 1.0
    if kind in ("linear", "dynamic", "llama3") and "factor" not in fields:
        raise ModelError(f"rope of layer {index}: {kind} has no factor")
    return Rope(
        kind=kind,
        width=width,
        rotated=rotated,
        theta=float(fields["rope_theta"]),
        interleaved=str(config.get("model_type", "")).removesuffix("_text") in _INTERLEAVED,
        max_length=longest,
        original_length=original,
        turning_pairs=int(share * width // 2) if kind == "proportional" else 0,
        factor=float(factor),
        attention_factor=_attention_factor(kind, fields, float(factor), original),
        low_frequency_factor=float(fields.get("low_freq_factor") or 1.0),
        high_frequency_factor=float(fields.get("high_freq_factor") or 4.0),
        beta_fast=float(fields.get("beta_fast") or 32.0),
        beta_slow=float(fields.get("beta_slow") or 1.0),
        truncate=bool(fields.get("truncate", True)),
        short_factors=_factors(fields, "short_factor", rotated, kind),
        long_factors=_factors(fields, "long_factor", rotated, kind),
    )


def _turns_nothing(config: Mapping[str, Any], kind: str, index: int) -> bool:
    marks = config.get("no_rope_layers")
    if isinstance(marks, Sequence) and marks and not marks[index]:  # its 0 means: no rope here
        return True
    # Cohere 2 turns keys only where attention slides.
    return str(config.get("model_type", "")).startswith("cohere2") and kind == "full_attention"


def _fields_of_layer(config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The table for a layer of this kind, with rope_theta in it."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind in table:
        table = table[kind] or {}
    local = config.get("rope_local_base_freq") if kind == "sliding_attention" else None
    if local is not None and "rope_parameters" not in config:
        return {"rope_type": "default", "rope_theta": local}
    theta = table.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise ModelError(f"the configuration has no rope_theta for {kind} layers")
    if "mrope_section" in table:
        raise ModelError("positions in three dimensions (mrope_section) cannot be taken out of keys")
    return {**table, "rope_theta": theta}


def _attention_factor(kind: str, fields: Mapping[str, Any], factor: float, original: int) -> float:
    if kind not in ("yarn", "longrope"):
        return 1.0
    if (given := fields.get("attention_factor")) is not None:
        return float(given)
    if kind == "longrope":
        return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = fields.get("mscale"), fields.get("mscale_all_dim")
    return scale(float(over)) / scale(float(under)) if over and under else scale(1.0)


def _factors(fields: Mapping[str, Any], name: str, rotated: int, kind: str) -> tuple[float, ...]:
    if kind != "longrope":
        return ()
    found = tuple(float(value) for value in fields.get(name) or ())
    if len(found) != rotated // 2:
        raise ModelError(f"longrope's {name} has {len(found)} numbers for {rotated // 2} pairs")
    return found


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int):
        raise ModelError(f"the configuration has no {name}")
    return value
