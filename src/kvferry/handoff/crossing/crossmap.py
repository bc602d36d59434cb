"""A trained map as what everybody asks: KV of a context in the target's shapes, keys turned where they stand.

Owns applying the network to a context, the map's facts and digest, and the control that has the same moments
and knows nothing. Knows no file and no training.
"""

from __future__ import annotations

import copy
import hashlib

import msgspec
import torch

from ...errors import ModelError
from ...runs.retention_summary import Figure
from ..mapping.contract import Context
from ..mapping.namespace import check_models
from ..mapping.rope import apply_rope
from ..mapping.shapes import LayerKv, ModelKv, Prefill
from .align import Alignment, align
from .features import source_rows
from .network import CrossNetwork

__all__ = ["CrossFacts", "CrossMap", "check_context", "random_map", "turned"]


class CrossFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the map came about, and what a reader of held-out texts made of its KV."""

    kvferry: str
    trained_tokens: int
    """Target tokens that the suffix loss went over, contexts and suffixes, every pass counted; 0 where the
    map is the closed form, whatever was trained and thrown away."""
    calibration_tokens: int
    """Target tokens that the closed form was solved on."""
    steps: int
    positions: int
    """Target tokens of a context: positions 0 to this less one were seen."""
    device: str
    seconds: dict[str, float] = {}
    """Of each part, on that device."""
    settings: dict[str, str | int | float | list[int]] = {}
    calibration_r2: float = 0.0
    """Of the closed form of full rank, on windows of validation documents, which chose its lambda too."""
    training_gain: float = 0.0
    """Nats a suffix token that training brought on validation documents; where it is not more than 0, the
    map is the closed form."""
    held_out_texts: int = 0
    nll: dict[str, float] = {}
    """Nats a suffix token, by arm, over held-out texts."""
    gains: dict[str, Figure] = {}
    """Nats a token by which the map is better than each control."""
    beats_controls: bool = False
    """Whether every control's interval excludes zero. False: this map is a failed one."""
    seen_documents: tuple[str, ...] = ()
    """SHA-256, in hex, of the text of each document that was trained on or chosen by. Empty in files that
    were written before this was kept."""


class CrossMap:
    """A `KvMap` over a network.

    Its KV is an estimate and belongs into a namespace of its own (`mapping/namespace.py`).
    """

    def __init__(
        self,
        network: CrossNetwork,
        facts: CrossFacts | None = None,
        *,
        name: str = "cross",
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is the target cache's; None: that of the source's KV."""
        self.network, self.facts = network.requires_grad_(False), facts
        self.name, self.dtype = name, dtype

    @property
    def positions(self) -> int | None:
        """Target tokens of a context in training; None where it was not trained."""
        return None if self.facts is None else self.facts.positions

    @property
    def trained_tokens(self) -> int:
        facts = self.facts
        return 0 if facts is None else facts.trained_tokens + facts.calibration_tokens

    @property
    def seen_documents(self) -> frozenset[str]:
        """Digests of the documents that it was trained on or chosen by: nothing may be measured on these."""
        return frozenset() if self.facts is None else frozenset(self.facts.seen_documents)

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.network.numbers().values())

    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides what comes out; facts about it are not part of it."""
        digest = hashlib.sha256(msgspec.json.encode(self.network.shape, order="deterministic"))
        for name, tensor in self.network.numbers().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @torch.no_grad()
    def carry(self, context: Context, source: Prefill, positions: torch.Tensor) -> Prefill:
        """KV of `context.target_ids` at `positions`, on the device of the source's KV.

        Raises ModelError where ids, spans or KV are not those of the two models.
        """
        check_context(context, source)
        device = source.layers[0].keys.device
        self.network.to(device)
        rows = source_rows(self.network.shape.source, source, self.network.shape.reads)
        layers = self.network(
            rows,
            torch.tensor(context.target_ids, dtype=torch.int64, device=device),
            align(context.source_spans, context.target_spans).to(device),
        )
        kind = source.layers[0].keys.dtype if self.dtype is None else self.dtype
        return turned(self.network, layers, positions.to(device), kind)

    def check(self, source: ModelKv, target: ModelKv) -> None:
        """Raise FormatError, naming the field, where these are not the models that it was trained for."""
        check_models(self.network.shape.source, source, "source")
        check_models(self.network.shape.target, target, "target")

    def alignment(self, context: Context) -> Alignment:
        """Which source token each target token reads."""
        return align(context.source_spans, context.target_spans)


def check_context(context: Context, source: Prefill) -> None:
    """Raise ModelError where ids, spans and KV of a context do not belong together."""
    counts = (len(context.source_ids), len(context.source_spans), source.tokens)
    if len(set(counts)) > 1:
        raise ModelError("{} source tokens with {} spans and KV of {} tokens".format(*counts))
    if len(context.target_ids) != len(context.target_spans):
        raise ModelError(f"{len(context.target_ids)} target tokens with {len(context.target_spans)} spans")


def turned(
    network: CrossNetwork, layers: list[LayerKv], positions: torch.Tensor, dtype: torch.dtype
) -> Prefill:
    """Unturned layers as a cache holds them: keys turned to `positions`, numbers in `dtype`."""
    if positions.shape[0] != layers[0].keys.shape[1]:
        raise ModelError(f"{positions.shape[0]} positions for {layers[0].keys.shape[1]} tokens")
    short = dtype in (torch.float16, torch.bfloat16)
    length = int(positions.max()) + 1 if positions.numel() else None
    made = []
    for shape, layer in zip(network.shape.target.layers, layers, strict=True):
        keys = apply_rope(
            layer.keys, shape.rope, positions, length=length, rounded_to=dtype if short else None
        )
        made.append(LayerKv(keys.to(dtype), layer.values.to(dtype)))
    return Prefill(made, positions, length)


@torch.no_grad()
def random_map(trained: CrossMap, *, seed: int) -> CrossMap:
    """The control: `trained` with a random last line whose outputs have the same means and spreads.

    What a target token reads reaches the control's KV as it reaches the map's, but in directions that mean
    nothing; so what the map does better, it does by what it has learned.
    """
    network = copy.deepcopy(trained.network)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(network.leave.shape, generator=generator).to(network.leave.device)
    sizes = network.leave.norm(dim=0) / drawn.norm(dim=0).clamp_min(1e-12)
    network.leave.copy_(drawn * sizes)
    return CrossMap(network, name="random mapper", dtype=trained.dtype)
