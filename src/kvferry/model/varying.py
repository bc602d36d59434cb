"""What differs from layer to layer within one kind: heads and widths given as lists or objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError
from .fields import Fields
from .layers import Attention, Layer
from .names import KV_HEADS

__all__ = ["Varying", "whole_numbers"]


class Varying:
    """The overrides of one config; false where it has none."""

    def __init__(self, fields: Fields) -> None:
        source = fields.source
        self._heads: list[int] | None = None
        for name in KV_HEADS:
            if isinstance(value := fields.raw(name), list) and value:
                self._heads = whole_numbers(value, f"{source}: {name}")
                break
        self._blocks = [
            _own(block, "attention", f"{source}: block_configs[{index}]")
            for index, block in enumerate(fields.sequence("block_configs") or ())
        ]
        self._overrides: dict[int, Mapping[str, Any]] = {}
        overrides = fields.raw("per_layer_config")
        if overrides is not None:
            for index, own in _object(overrides, f"{source}: per_layer_config").items():
                if not str(index).isdecimal():
                    raise ModelError(f"{source}: per_layer_config has {index!r}, which is no layer's number")
                self._overrides[int(index)] = _object(own, f"{source}: per_layer_config, {index}")

    def __bool__(self) -> bool:
        return self._heads is not None or bool(self._blocks) or bool(self._overrides)

    def applied(self, index: int, layer: Layer) -> Layer:
        """The layer with its own heads and widths."""
        attention = layer.attention
        if not isinstance(attention, Attention):
            return layer
        heads, width, values = attention.kv_heads, attention.key_width, attention.value_width
        if self._heads is not None and index < len(self._heads):
            heads = self._heads[index]
        if index < len(self._blocks):
            own = self._blocks[index]
            if (group := own.maybe_number("n_heads_in_group")) is not None and attention.query_heads:
                heads = max(1, attention.query_heads // group)
            heads = own.maybe_number("num_key_value_heads") or heads
        if (override := self._overrides.get(index)) is not None:
            changed = Fields(override, f"per_layer_config, {index}")
            heads = changed.maybe_number("num_key_value_heads") or heads
            width = changed.maybe_number("head_dim") or width
            values = changed.maybe_number("head_dim") or values
        if heads == 0:
            return Layer(None, layer.state)
        own_attention = Attention(
            kv_heads=heads,
            key_width=width,
            value_width=values,
            window=attention.window,
            chunked=attention.chunked,
            query_heads=attention.query_heads,
        )
        return Layer(own_attention, layer.state)


def whole_numbers(values: Sequence[Any], what: str) -> list[int]:
    """A list of whole numbers, 0 or more. Raises `ModelError`."""
    for value in values:
        if type(value) is not int or value < 0:
            raise ModelError(f"{what} has {value!r}; it must be whole numbers, 0 or more")
    return list(values)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelError(f"{what} is {value!r}; it must be an object")
    return value


def _own(block: Any, part: str, what: str) -> Fields:
    return Fields(_object(_object(block, what).get(part) or {}, f"{what}, {part}"), what)
