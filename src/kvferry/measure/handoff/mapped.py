"""A prefill of one model, handed over to another: the map stands between the runner and the wire.

Owns the sender's half: that the map is of these two models, the KV it makes layer by layer, and the namespace
that says what it is. What a receiver asks before it takes such KV is in `decoding.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import torch

from ...errors import FormatError, ModelError, UsageError
from ...handoff.mapping.mapper import Mapper
from ...handoff.mapping.namespace import check_models, mapped_namespace
from ...handoff.mapping.shapes import LayerKv
from ...handoff.wire.layers import Layers
from ...keys.namespace import Namespace

__all__ = ["KvCarrier", "read_receiver"]

_PROBE_TOKENS = 64


class KvCarrier:
    """One map, from the KV of `source` to that of `target`.

    `namespace` is what it makes: the target's, marked with the digests of map, source and target. Raises
    FormatError where the map is of other models, or the two read different tokens, and ModelError where the
    target's layers differ in shape, since the wire carries one.
    """

    def __init__(self, mapper: Mapper, source: Namespace, target: Namespace) -> None:
        check_models(mapper.outline.source, source, "source")
        check_models(mapper.outline.target, target, "target")
        if source.tokenizer != target.tokenizer:
            raise FormatError(
                f"{source.model} and {target.model} differ in tokenizer: "
                "token ids of one mean nothing to the other"
            )
        shapes = {
            (layer.kv_heads, layer.key_width, layer.value_width) for layer in mapper.outline.target.layers
        }
        if len(shapes) != 1 or len({size for _, *sizes in shapes for size in sizes}) != 1:
            raise ModelError(
                f"{target.model}: KV of several shapes {sorted(shapes)} does not fit one hand-off"
            )
        ((self.kv_heads, self.head_dim, _),) = shapes
        self.layers = len(mapper.outline.target.layers)
        self.dtype_name = target.kv_dtype
        dtype = getattr(torch, target.kv_dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise FormatError(f"{target.model} keeps KV as {target.kv_dtype}, which is no type of numbers")
        self.dtype = dtype
        self.digest = mapper.digest()
        self.namespace = mapped_namespace(source, target, self.digest)
        self._mapper = mapper
        self.seconds_per_token = self._probed()

    def room(self, tokens: int) -> torch.Tensor:
        """Memory for what is made: [layers, 2, KV heads, tokens, width]."""
        return torch.empty((self.layers, 2, self.kv_heads, tokens, self.head_dim), dtype=self.dtype)

    @torch.inference_mode()
    def carry(self, kv: torch.Tensor, tokens: int, room: torch.Tensor, layers: Layers) -> None:
        """Map the first `tokens` of the source's KV into `room`; `layers` hears of each that is made.

        `kv` is the source's [layers, 2, KV heads, capacity, width], its first token at position 0.
        """
        began = time.perf_counter()
        positions = torch.arange(tokens)
        parts = [LayerKv(layer[0, :, :tokens], layer[1, :, :tokens]) for layer in kv]
        made: set[int] = set()
        for index, layer in self._mapper.stream(parts, positions, dtype=self.dtype):
            room[index, 0], room[index, 1] = layer.keys, layer.values
            made.add(index)
            # Layers are made as their sources come, but leave in order.
            layers.advance(next(at for at in range(self.layers + 1) if at not in made))
        self.seconds_per_token = max(self.seconds_per_token, (time.perf_counter() - began) / tokens)

    def _probed(self) -> float:
        """Seconds a token, so that a map that is not applied yet can be priced."""
        source = self._mapper.outline.source.layers
        parts = [
            LayerKv(
                torch.zeros(layer.kv_heads, _PROBE_TOKENS, layer.key_width),
                torch.zeros(layer.kv_heads, _PROBE_TOKENS, layer.value_width),
            )
            for layer in source
        ]
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in self._mapper.stream(parts, torch.arange(_PROBE_TOKENS), dtype=self.dtype):
                pass
        return (time.perf_counter() - began) / _PROBE_TOKENS


def read_receiver(path: Path) -> Namespace:
    """The namespace of a receiver, from a file with the first line that it printed. Raises UsageError."""
    try:
        line = msgspec.json.decode(path.read_bytes().splitlines()[0])
        return Namespace.from_fields(line["namespace"])
    except (OSError, IndexError, KeyError, TypeError, msgspec.DecodeError, FormatError) as error:
        raise UsageError(
            f"--receiver {path}: {error}; write the first line of kvferry handoff receive there"
        ) from error
