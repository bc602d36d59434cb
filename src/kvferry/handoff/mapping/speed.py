"""How long a map takes beside the prefill that it replaces.

Owns the measurement: the same tokens through the source, the map and the target, in turn, so that what else
the machine does falls on all of them; medians are given.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import msgspec
import torch

from .mapper import Mapper
from .rows import Prefiller
from .shapes import Prefill

__all__ = ["Speed", "measure_speed"]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repeats, and how near the mapped KV came on this prompt."""

    tokens: int
    offset: int
    mapped_bytes: int
    source_prefill_seconds: float
    apply_seconds: float
    target_prefill_seconds: float
    key_cosine: float
    value_cosine: float
    map_bytes: int
    digest: str

    @property
    def times_faster_than_prefill(self) -> float:
        """The target's own prefill over the map's application; the source's prefill is not counted."""
        return self.target_prefill_seconds / self.apply_seconds

    @property
    def mapped_bytes_per_second(self) -> float:
        """KV made by the map."""
        return self.mapped_bytes / self.apply_seconds


def measure_speed(
    mapper: Mapper,
    source: Prefiller,
    target: Prefiller,
    token_ids: Sequence[int],
    *,
    offset: int = 0,
    repeats: int = 3,
) -> Speed:
    """Time the map on a prompt whose first token stands at `offset` in the target."""
    taken: dict[str, list[float]] = {"source": [], "apply": [], "target": []}
    mapped, native = _once(
        mapper, source, target, token_ids, offset, {"source": [], "apply": [], "target": []}
    )
    for _ in range(repeats):
        _once(mapper, source, target, token_ids, offset, taken)
    pairs = list(zip(mapped.layers, native.layers, strict=True))
    return Speed(
        tokens=len(token_ids),
        offset=offset,
        mapped_bytes=sum(
            part.numel() * part.element_size()
            for layer in mapped.layers
            for part in (layer.keys, layer.values)
        ),
        source_prefill_seconds=statistics.median(taken["source"]),
        apply_seconds=statistics.median(taken["apply"]),
        target_prefill_seconds=statistics.median(taken["target"]),
        key_cosine=_cosine([(a.keys, b.keys) for a, b in pairs]),
        value_cosine=_cosine([(a.values, b.values) for a, b in pairs]),
        map_bytes=mapper.nbytes,
        digest=mapper.digest(),
    )


def _once(
    mapper: Mapper,
    source: Prefiller,
    target: Prefiller,
    token_ids: Sequence[int],
    offset: int,
    taken: dict[str, list[float]],
) -> tuple[Prefill, Prefill]:
    began = time.perf_counter()
    have = source.prefill(token_ids)
    between = _settled(have)
    native = target.prefill(token_ids, offset=offset)
    ended = _settled(native)
    kind = native.layers[0].keys.dtype
    mapped = mapper.apply(have, positions=have.positions + offset, dtype=kind, length=native.length)
    done = _settled(mapped)
    for name, seconds in (("source", between - began), ("target", ended - between), ("apply", done - ended)):
        taken[name].append(seconds)
    return mapped, native


def _settled(prefill: Prefill) -> float:
    """The time at which it is really there: a device works behind our back."""
    device = prefill.layers[0].keys.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _cosine(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    found = [
        float(torch.nn.functional.cosine_similarity(a.float(), b.float(), dim=-1).mean()) for a, b in pairs
    ]
    return sum(found) / len(found)
