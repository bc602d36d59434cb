"""A fitted map between two models' KV, and applying it.

Owns the map as data, its digest, and the way of a prefill through it: layer by layer as source layers come
in, a bounded number of tokens at a time, keys turned anew for wherever the tokens stand in the target. Knows
nothing of files, of fitting or of what quality is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from ...errors import ModelError
from .heads import Wiring
from .mlp import Mlp
from .ridge import Line
from .rope import apply_rope, strip_rope
from .shapes import LayerKv, LayerShape, ModelKv, Prefill

__all__ = ["CHUNK_TOKENS", "Facts", "LayerMap", "Mapper", "Outline", "Point"]

CHUNK_TOKENS = 2048
"""Tokens whose intermediate results are held at a time."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out R2 after so much calibration: mean over layers."""

    rows: int
    keys_r2: float
    values_r2: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """How the map came about, and how well it did on documents that nothing was fitted or chosen on."""

    kvferry: str
    rows: int
    documents: int
    positions: int
    """Calibrated positions are 0 to positions - 1."""
    inputs: str
    weighted: bool
    source_layers: int
    """k: source layers that a target layer reads."""
    parameters_per_head: int
    """Regression inputs of one target head."""
    lambdas: tuple[tuple[float, float], ...]
    """Relative lambda of keys and of values, by layer."""
    keys_r2: tuple[float, ...]
    values_r2: tuple[float, ...]
    attention_cosine: tuple[float | None, ...]
    """Mean cosine of each layer's attention output with the native one; None where no query was seen."""
    curve: tuple[Point, ...] = ()
    seconds: dict[str, float] = {}

    @property
    def rows_per_parameter(self) -> float:
        return self.rows / max(1, self.parameters_per_head)

    @property
    def worst_layer(self) -> int | None:
        """The layer with the lowest cosine of attention's output; None where none was measured."""
        known = [(value, at) for at, value in enumerate(self.attention_cosine) if value is not None]
        return min(known)[1] if known else None


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a map is besides its numbers."""

    source: ModelKv
    target: ModelKv
    wiring: tuple[Wiring, ...]
    stripped: bool = True
    """Whether keys are mapped unturned. False only to show why they must be."""

    def __post_init__(self) -> None:
        if len(self.wiring) != len(self.target.layers):
            raise ModelError(
                f"{len(self.wiring)} layers are mapped, {self.target.name} has {len(self.target.layers)}"
            )
        for wiring in self.wiring:
            if max(wiring.sources) >= len(self.source.layers):
                raise ModelError(f"{self.source.name} has no layer {max(wiring.sources)}")


@dataclass(frozen=True, slots=True)
class LayerMap:
    """The map of one target layer. Lines of full inputs have one panel, of local inputs one a head."""

    keys: Line
    values: Line
    keys_mlp: Mlp | None = None
    values_mlp: Mlp | None = None

    @property
    def parameters(self) -> int:
        networks = [one for one in (self.keys_mlp, self.values_mlp) if one is not None]
        return self.keys.parameters + self.values.parameters + sum(one.parameters for one in networks)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its numbers by the names under which a file holds them."""
        found: dict[str, torch.Tensor] = {}
        for name, line, mlp in (
            ("keys", self.keys, self.keys_mlp),
            ("values", self.values, self.values_mlp),
        ):
            found[f"{name}.weight"], found[f"{name}.bias"] = line.weight, line.bias
            if mlp is not None:
                found |= {f"{name}.mlp.{part}": tensor for part, tensor in mlp.tensors().items()}
        return found


@dataclass(frozen=True, slots=True)
class _Held:
    """A source layer, its keys stripped: each [heads, tokens, width]."""

    keys: torch.Tensor
    values: torch.Tensor


class Mapper:
    """KV of `outline.source` to KV of `outline.target`.

    Lossy by nature: what comes out is an estimate, never what the target would have computed, and belongs
    into a namespace of its own (`namespace.py`).
    """

    def __init__(self, outline: Outline, layers: Sequence[LayerMap], facts: Facts | None = None) -> None:
        if len(layers) != len(outline.wiring):
            raise ModelError(f"{len(layers)} maps for {len(outline.wiring)} layers")
        self.outline, self.layers, self.facts = outline, tuple(layers), facts

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Size of its numbers."""
        tensors = (tensor for layer in self.layers for tensor in layer.tensors().values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides what comes out; facts about it are not part of it."""
        digest = hashlib.sha256(msgspec.json.encode(self.outline, order="deterministic"))
        for index, layer in enumerate(self.layers):
            for name, tensor in sorted(layer.tensors().items()):
                digest.update(f"{index}.{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def apply(
        self,
        prefill: Prefill,
        *,
        positions: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        length: int | None = None,
    ) -> Prefill:
        """A whole prefill at once; see `stream`."""
        onto = prefill.positions if positions is None else positions
        layers: list[LayerKv | None] = [None] * len(self.layers)
        for index, layer in self.stream(
            prefill.layers,
            prefill.positions,
            positions=onto,
            dtype=dtype,
            source_length=prefill.length,
            length=length,
        ):
            layers[index] = layer
        return Prefill([layer for layer in layers if layer is not None], onto, length)

    def stream(
        self,
        layers: Iterable[LayerKv],
        source_positions: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        source_length: int | None = None,
        length: int | None = None,
    ) -> Iterator[tuple[int, LayerKv]]:
        """Take source layers in order, as they come; give (index, layer) of the target as soon as possible.

        `positions` are the tokens' in the target (None: the source's), so tokens of several sequences, each
        with its own positions, may stand side by side. `dtype` is the target cache's (None: the source's).
        A source layer is let go when nothing more reads it. Raises `ModelError` where layers do not have the
        source's shape, or are fewer.
        """
        onto = source_positions if positions is None else positions
        if not self.outline.stripped and not torch.equal(onto, source_positions):
            raise ModelError("this map works on turned keys: it cannot move tokens to other positions")
        waiting = {index: max(wiring.sources) for index, wiring in enumerate(self.outline.wiring)}
        held: dict[int, _Held] = {}
        for number, layer in enumerate(layers):
            self._check(number, layer, source_positions)
            kind = layer.keys.dtype if dtype is None else dtype
            held[number] = self._take(number, layer, source_positions, source_length)
            for index in [index for index, last in waiting.items() if last == number]:
                del waiting[index]
                yield index, self._map(index, held, onto, length, kind)
            needed = {source for index in waiting for source in self.outline.wiring[index].sources}
            held = {source: kept for source, kept in held.items() if source in needed}
        if waiting:
            raise ModelError(
                f"source layers ended before layer {max(waiting.values())}: layers {sorted(waiting)} "
                "of the target cannot be mapped"
            )

    def _check(self, number: int, layer: LayerKv, positions: torch.Tensor) -> None:
        shapes = self.outline.source.layers
        if number >= len(shapes):
            raise ModelError(f"{self.outline.source.name} has {len(shapes)} layers; one more came")
        shape, tokens = shapes[number], positions.shape[0]
        wanted = (shape.kv_heads, tokens, shape.key_width), (shape.kv_heads, tokens, shape.value_width)
        found = tuple(layer.keys.shape), tuple(layer.values.shape)
        if found != wanted:
            raise ModelError(f"layer {number}: KV {found} came, {wanted} is {self.outline.source.name}'s")

    def _take(self, number: int, layer: LayerKv, positions: torch.Tensor, length: int | None) -> _Held:
        keys = layer.keys
        if self.outline.stripped:
            rope = self.outline.source.layers[number].rope
            keys = strip_rope(keys, rope, positions, length=length, rounded_to=_rounding(keys.dtype))
        return _Held(keys.float(), layer.values.float())

    def _map(
        self,
        index: int,
        held: dict[int, _Held],
        positions: torch.Tensor,
        length: int | None,
        dtype: torch.dtype,
    ) -> LayerKv:
        shape, wiring, layer = (
            self.outline.target.layers[index],
            self.outline.wiring[index],
            self.layers[index],
        )
        tokens = positions.shape[0]
        some = next(iter(held.values())).keys
        keys = torch.empty(shape.kv_heads, tokens, shape.key_width, dtype=dtype, device=some.device)
        values = torch.empty(shape.kv_heads, tokens, shape.value_width, dtype=dtype, device=some.device)
        if self.outline.stripped and shape.rope.varies and length is None and tokens:
            length = int(positions.max()) + 1
        for start in range(0, tokens, CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            sources = [held[source] for source in wiring.sources]
            mapped = _through(
                layer.keys, layer.keys_mlp, [one.keys[:, part] for one in sources], wiring, shape
            )
            if self.outline.stripped:
                mapped = apply_rope(
                    mapped, shape.rope, positions[part], length=length, rounded_to=_rounding(dtype)
                )
            keys[:, part] = mapped
            values[:, part] = _through(
                layer.values, layer.values_mlp, [one.values[:, part] for one in sources], wiring, shape
            )
        return LayerKv(keys, values)


def _through(
    line: Line, mlp: Mlp | None, parts: Sequence[torch.Tensor], wiring: Wiring, shape: LayerShape
) -> torch.Tensor:
    """One chunk through a line: a product for each source layer, so inputs need not be laid side by side."""
    tokens = parts[0].shape[1]
    weight, bias = line.weight.float(), line.bias.float()
    result, start, laid = bias[:, None].expand(-1, tokens, -1), 0, []
    for rank, part in enumerate(parts):
        x = (
            part[list(wiring.matched[rank])]
            if wiring.matched
            else part.transpose(0, 1).flatten(1).unsqueeze(0)
        )
        result = torch.baddbmm(result, x, weight[:, start : start + x.shape[2]])
        start += x.shape[2]
        if mlp is not None:
            laid.append(x)
    if mlp is not None:
        result = result + mlp(torch.cat(laid, dim=2))
    if wiring.matched:
        return result
    return result[0].reshape(tokens, shape.kv_heads, -1).transpose(0, 1)


def _rounding(dtype: torch.dtype) -> torch.dtype | None:
    """Engines round cosine and sine to the dtype of the model, where that is a short one."""
    return dtype if dtype in (torch.float16, torch.bfloat16) else None
