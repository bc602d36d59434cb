"""The map between two families: source KV and target tokens in, unturned KV of every target layer out.

Owns the network and its shape. Three steps: a row for each target token (the source token that it reads, and
a short code of the token itself, which the receiver knows) is taken to latents; blocks add what attention to
the source and to the tokens before finds; one line takes latents to keys and values of all layers. Without
blocks the whole is a line of low rank, which a closed form gives (`initial.py`): training begins there.

The first token's KV is a resting place of attention, not a function of text: it has numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from torch import nn
from torch.nn import functional

from ...errors import ModelError
from ..mapping.shapes import LayerKv, LayerShape, ModelKv
from .align import Alignment
from .blocks import Block
from .features import feature_width

__all__ = ["CrossNetwork", "CrossShape", "cut_outputs", "gather", "output_blocks"]


class CrossShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the network is besides its numbers."""

    source: ModelKv
    target: ModelKv
    reads: tuple[int, ...]
    """Source layers whose KV is read."""
    width: int
    """Of the latents: the rank of what the line can say."""
    blocks: int
    heads: int
    vocabulary: int
    """Tokens of the target that have a code."""
    code_width: int
    """Numbers of a token's code; 0: the map sees the source's KV alone."""

    def __post_init__(self) -> None:
        if not self.reads or max(self.reads) >= len(self.source.layers) or min(self.reads) < 0:
            raise ModelError(
                f"{self.source.name} has layers 0 to {len(self.source.layers) - 1}, not {self.reads}"
            )
        if self.heads < 1 or self.width % (2 * self.heads):
            raise ModelError(f"a width of {self.width} is not {self.heads} heads of an even size")
        if self.blocks < 0 or self.code_width < 0:
            raise ModelError("blocks and code_width are at least 0")

    @property
    def source_width(self) -> int:
        return feature_width(self.source, self.reads)

    @property
    def outputs(self) -> int:
        return self.target.numbers_per_token


class CrossNetwork(nn.Module):
    """float32 throughout. Everything random comes from `seed`; nothing of it shows before training."""

    def __init__(self, shape: CrossShape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        inputs = shape.source_width + shape.code_width
        self.centre = nn.Buffer(torch.zeros(inputs))
        """Means and, below, standard deviations of what a target token is computed from."""
        self.spread = nn.Buffer(torch.ones(inputs))
        self.sizes = nn.Buffer(torch.ones(shape.outputs))
        """Spread of each output's head: the last line works in these units, so that all heads train alike."""
        self.codes = nn.Buffer(torch.zeros(shape.vocabulary if shape.code_width else 0, shape.code_width))
        self.enter = nn.Parameter(torch.zeros(inputs, shape.width))
        self.enter_bias = nn.Parameter(torch.zeros(shape.width))
        self.sight = nn.Parameter(
            torch.randn(shape.source_width, shape.width, generator=generator) / shape.source_width**0.5
        )
        """Source rows, standardised, to what blocks look at."""
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, generator) for _ in range(shape.blocks))
        self.leave = nn.Parameter(torch.zeros(shape.width, shape.outputs))
        self.leave_bias = nn.Parameter(torch.zeros(shape.outputs))
        self.first = nn.Parameter(torch.zeros(shape.outputs))
        """All KV of the first token."""

    @property
    def parameters_count(self) -> int:
        """Numbers that are trained."""
        return sum(one.numel() for one in self.parameters())

    def latents(self, rows: torch.Tensor, token_ids: torch.Tensor, alignment: Alignment) -> torch.Tensor:
        """Latents [tokens, width] from source rows [source tokens, source width] before the last line."""
        latents = self.inputs(rows, token_ids, alignment) @ self.enter + self.enter_bias
        if not len(self.blocks):
            return latents
        width = self.shape.source_width
        source = ((rows - self.centre[:width]) / self.spread[:width]) @ self.sight
        seen = torch.arange(rows.shape[0], device=rows.device)[None, :] < alignment.reach[:, None]
        seen = functional.pad(seen, (1, 0), value=True)
        for block in self.blocks:
            latents = block(latents, source, alignment.read.clamp_min(0), seen)
        return latents

    def inputs(self, rows: torch.Tensor, token_ids: torch.Tensor, alignment: Alignment) -> torch.Tensor:
        """What a target token is computed from, standardised, [tokens, source width + code width].

        A token that reads nothing with a past has the mean row: zeros.
        """
        found = (gather(rows, token_ids, alignment, self.codes) - self.centre) / self.spread
        width = self.shape.source_width
        known = torch.where(alignment.grounded[:, None], found[:, :width], 0.0)
        return torch.cat([known, found[:, width:]], dim=1)

    def forward(self, rows: torch.Tensor, token_ids: torch.Tensor, alignment: Alignment) -> list[LayerKv]:
        """Unturned KV of every target layer, float32, [KV heads, tokens, width] each."""
        flat = self.latents(rows, token_ids, alignment) @ self.leave + self.leave_bias
        flat = torch.cat([self.first[None], flat[1:]]) if flat.shape[0] else flat
        return cut_outputs(flat * self.sizes, self.shape.target)

    def numbers(self) -> Mapping[str, torch.Tensor]:
        """Everything that decides what comes out, by name."""
        return dict(sorted(self.state_dict().items()))


def gather(
    rows: torch.Tensor, token_ids: torch.Tensor, alignment: Alignment, codes: torch.Tensor
) -> torch.Tensor:
    """For each target token the source's row that it reads and its own code, [tokens, both widths].

    Raises ModelError where ids and alignment are of different texts, or a token has no code.
    """
    if token_ids.shape != alignment.read.shape:
        raise ModelError(f"{token_ids.numel()} target tokens, {alignment.read.numel()} are aligned")
    if alignment.read.numel() and int(alignment.read.max()) >= rows.shape[0]:
        raise ModelError(f"source token {int(alignment.read.max())} is read, {rows.shape[0]} came")
    if codes.shape[1] and token_ids.numel() and int(token_ids.max()) >= codes.shape[0]:
        raise ModelError(f"token {int(token_ids.max())}: the map knows {codes.shape[0]} tokens")
    read = rows[alignment.read.clamp_min(0)]
    return torch.cat([read, codes[token_ids].float()], dim=1) if codes.shape[1] else read


def output_blocks(layers: tuple[LayerShape, ...]) -> list[tuple[int, int]]:
    """[start, stop) of each head's keys and each head's values in a row of outputs, in their order."""
    found, start = [], 0
    for shape in layers:
        for width in (shape.key_width, shape.value_width):
            for _ in range(shape.kv_heads):
                found.append((start, start + width))
                start += width
    return found


def cut_outputs(flat: torch.Tensor, target: ModelKv) -> list[LayerKv]:
    """Rows of outputs [tokens, numbers] as layers."""
    sizes = [
        shape.kv_heads * width for shape in target.layers for width in (shape.key_width, shape.value_width)
    ]
    parts = torch.split(flat, sizes, dim=1)
    return [
        LayerKv(*(_by_head(part, shape.kv_heads) for part in parts[2 * index : 2 * index + 2]))
        for index, shape in enumerate(target.layers)
    ]


def _by_head(part: torch.Tensor, heads: int) -> torch.Tensor:
    return part.reshape(part.shape[0], heads, -1).transpose(0, 1)
