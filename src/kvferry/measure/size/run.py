"""Measures the slope: bytes of a real cache between two prefix lengths, beside what is computed.

Owns the comparison. Both prefixes are longer than any window of the model, so that the slope is what grows
and the rest is what is fixed. It agrees only when both are the same to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...config.places import cache_dir
from ...errors import MissingExtra, ModelError
from ...model.config import from_config
from ...model.layers import Attention, Model
from ...model.layouts.setup import Setup
from ...model.size import size_of
from .tiny import TINY, tiny_config

__all__ = ["Measured", "measure_config", "measure_model", "measure_tiny"]

_TINY_PREFIXES = (40, 72)
_PREFIXES = (64, 192)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One model, measured and computed; bytes of one sequence in transformers."""

    name: str
    architecture: str
    kinds: tuple[str, ...]
    """The kinds of its layers."""
    prefixes: tuple[int, int]
    bytes: tuple[int, int]
    measured_growing_bytes_per_token: float
    measured_fixed_bytes_per_request: float
    growing_bytes_per_token: float
    fixed_bytes_per_request: int

    @property
    def agrees(self) -> bool:
        """Whether both numbers are the same to the byte."""
        return (
            self.measured_growing_bytes_per_token == self.growing_bytes_per_token
            and self.measured_fixed_bytes_per_request == self.fixed_bytes_per_request
        )


def measure_tiny() -> Iterator[Measured]:
    """Every tiny random model, one after the other. Raises `ModelError` and `MissingExtra`."""
    for name in TINY:
        yield measure_config(name, tiny_config(name), _TINY_PREFIXES)


def measure_config(name: str, config: Mapping[str, Any], prefixes: tuple[int, int]) -> Measured:
    """A model with random weights, made from a config; computed from that config alone."""
    held = _backend().random_model(config)
    return _measured(name, from_config({**config, "dtype": "float32"}, name), held, prefixes)


def measure_model(name: str, *, say: Callable[[str], None] = lambda _: None) -> Measured:
    """A real model: a packaged one's name, a folder, or a hub id; fetched where it must be.

    The prefixes grow with the model's windows. Raises `ModelError`, `MissingExtra` and `ConfigError`.
    """
    backend = _backend()
    from ...engines.transformers.resolve import model_name, resolve_model

    folder: Path = resolve_model(name, cache_dir(), say=say)
    held = backend.load_model(folder)
    model = from_config(held.config, model_name(name))
    longest = max(
        (layer.attention.window or 0 for layer in model.layers if isinstance(layer.attention, Attention)),
        default=0,
    )
    first, second = (prefix + longest for prefix in _PREFIXES)
    return _measured(model_name(name), model, held, (first, second))


def _measured(name: str, model: Model, held: Any, prefixes: tuple[int, int]) -> Measured:
    first, second = _backend().cache_bytes(held, prefixes)
    if second < first:
        raise ModelError(f"{name}: its cache shrank from {first} to {second} bytes between two prefixes")
    slope = (second - first) / (prefixes[1] - prefixes[0])
    size = size_of(model, Setup(engine="transformers"), layers=False)
    return Measured(
        name=name,
        architecture=model.architecture,
        kinds=tuple(dict.fromkeys(layer.kind for layer in model.layers)),
        prefixes=prefixes,
        bytes=(first, second),
        measured_growing_bytes_per_token=slope,
        measured_fixed_bytes_per_request=first - slope * prefixes[0],
        growing_bytes_per_token=size.growing_bytes_per_token,
        fixed_bytes_per_request=size.fixed_bytes_per_request,
    )


def _backend() -> Any:
    try:
        from ...engines.transformers import cache_bytes
    except ImportError as error:
        raise MissingExtra("kvferry size --measure", "transformers") from error
    return cache_bytes
