"""From a Hugging Face config.json to a `Model`.

Owns finding the text part of a config with several, and what of a config is not a layer: dtypes, the longest
context, the numbers of the naive formula. The layers are read by `patterns` and `parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ModelError
from .families import UNNAMED, Family, family_of
from .fields import Fields
from .layers import Attention, Latent, Layer, Model, Naive
from .names import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYER_COUNT
from .parts import Parts
from .patterns import layer_kinds

__all__ = ["from_config", "parse_config"]

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_DTYPES = ("dtype", "torch_dtype")
_CONTEXTS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "model_max_length",
    "seq_length",
    "n_ctx",
)
_STATE_DTYPES = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
_STATE_CHUNKS = ("mamba_chunk_size", "chunk_size")


def parse_config(text: bytes, source: str, *, assume_dense: bool = False) -> Model:
    """Read the text of a config.json. Raises `ModelError` as `from_config` does."""
    try:
        values = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ModelError(f"{source}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{source}: a config is a JSON object, not a {type(values).__name__}")
    return from_config(values, source, assume_dense=assume_dense)


def from_config(
    values: Mapping[str, Any], source: str, *, assume_dense: bool = False, architecture: str | None = None
) -> Model:
    """The model that a config describes.

    `architecture` names it where the caller knows it and has translated its fields (a GGUF file's): they
    alone decide then.

    `assume_dense` reads a config of an unknown architecture as full attention in every layer and marks the
    model as assumed. Raises `ModelError` for an architecture that is not known, a field that is missing, and
    a kind of layer that is not known; the message names it.
    """
    outer = Fields(values, source)
    fields, name = _text_part(outer)
    family: Family | None
    notes = []
    if architecture is not None:
        name, family = architecture, UNNAMED
    else:
        family = UNNAMED if not name else family_of(name)
    if not name:
        notes.append("the config names no model_type: its fields alone say what the layers are")
    if assume_dense:
        return _model(fields, outer, name, family or UNNAMED, _dense(fields, family or UNNAMED), notes, True)
    if family is None:
        raise ModelError(
            f"{source}: the architecture {name!r} is not known here, so what its layers keep is not known; "
            "with --assume dense the naive figure is computed and marked as assumed"
        )
    if (ratios := fields.raw("compress_ratios", "compress_rates")) is not None:
        raise ModelError(f"{source}: layers with a compressed cache ({ratios!r:.40}) are not known here")
    layers = Parts(fields, family).layers(layer_kinds(fields, family))
    return _model(fields, outer, name, family, layers, notes, False)


def _text_part(outer: Fields) -> tuple[Fields, str]:
    """The part that generates text, and the model_type that says how to read it."""
    fields, name = outer, outer.text("model_type") or ""
    for _ in range(3):
        nested = next((part for part in _TEXT_PARTS if isinstance(fields.raw(part), Mapping)), None)
        if nested is None:
            break
        section = fields.section(nested)
        assert section is not None
        fields, name = section, section.text("model_type") or name
    return fields, name


def _dense(fields: Fields, family: Family) -> list[Layer]:
    parts = Parts(fields, Family(all_heads=family.all_heads))
    heads = parts.kv_heads()
    width = parts.head_dim()
    attention = Attention(
        kv_heads=heads, key_width=width, value_width=width, query_heads=fields.maybe_number(*HEADS)
    )
    return [Layer(attention)] * fields.number(*LAYER_COUNT)


def _model(
    fields: Fields,
    outer: Fields,
    name: str,
    family: Family,
    layers: list[Layer],
    notes: list[str],
    assumed: bool,
) -> Model:
    if _asks_for_kv_dtype(fields) or _asks_for_kv_dtype(outer):
        notes.append("the checkpoint carries scales for an 8-bit KV cache; an engine may take fp8 under auto")
    dtype = fields.text(*_DTYPES) or outer.text(*_DTYPES)
    return Model(
        source=outer.source,
        architecture=name,
        layers=tuple(layers),
        naive=_naive(fields, family, layers),
        dtype=dtype.removeprefix("torch.") if dtype else None,
        state_dtype=fields.text(*_STATE_DTYPES),
        state_chunk=fields.maybe_number(*_STATE_CHUNKS),
        context=fields.maybe_number(*_CONTEXTS),
        parameters=_parameters(outer),
        assumed=assumed,
        notes=tuple(notes),
    )


def _parameters(outer: Fields) -> float | None:
    """Only our presets say it: no config.json does."""
    value = outer.raw("kvferry_active_parameters")
    return float(value) if isinstance(value, int | float) else None


def _naive(fields: Fields, family: Family, layers: list[Layer]) -> Naive:
    """The textbook's numbers, as a reader takes them without looking at the kinds of layers."""
    hidden, heads = fields.maybe_number(*HIDDEN), fields.maybe_number(*HEADS)
    derived = hidden // heads if hidden and heads and hidden % heads == 0 else None
    latents = [layer.attention for layer in layers if isinstance(layer.attention, Latent)]
    plain = [layer.attention for layer in layers if isinstance(layer.attention, Attention)]
    kv_heads = fields.raw(*KV_HEADS)
    if not isinstance(kv_heads, int):
        kv_heads = max((one.kv_heads for one in plain), default=heads or 0)
    if latents:
        width = latents[0].value_width or latents[0].width
    else:
        width = fields.maybe_number(*HEAD_DIM) or derived or max((one.key_width for one in plain), default=0)
    count = fields.maybe_number(*LAYER_COUNT) or len(layers)
    if not plain and not latents:
        kv_heads, width = 0, 0
    return Naive(layers=count, kv_heads=kv_heads, head_dim=width, derived_head_dim=derived)


def _asks_for_kv_dtype(fields: Fields) -> bool:
    section = fields.raw("quantization_config", "compression_config")
    if not isinstance(section, Mapping):
        return False
    nested = section.get("quantization")
    inner = nested if isinstance(nested, Mapping) else section
    return bool(section.get("kv_cache_scheme") or inner.get("kv_cache_quant_algo"))
