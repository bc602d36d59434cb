"""One block of the map: causal self-attention, causal cross-attention to the source, a gated network.

Owns the block alone. It changes a stream of latents by what it adds, and begins by adding nothing: the last
projection of each part starts at zero, so an untrained block leaves the map that it stands in as it was.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ..mapping.rope import Rope, apply_rope

__all__ = ["Block"]


class Block(nn.Module):
    """Latents [tokens, width] and source latents [source tokens, width] to latents [tokens, width]."""

    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.attend = _Attention(width, heads, generator)
        self.look = _Attention(width, heads, generator)
        self.norms = nn.Parameter(torch.ones(3, width))
        inner = 2 * width
        self.gate = nn.Parameter(_normal(width, inner, generator))
        self.up = nn.Parameter(_normal(width, inner, generator))
        self.down = nn.Parameter(torch.zeros(inner, width))

    def forward(
        self, latents: torch.Tensor, source: torch.Tensor, at: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        """`at` [tokens]: the place of each token among the source's. `seen` [tokens, 1 + source tokens]: what
        may be looked at; the first column is a slot that is always there.
        """
        tokens = torch.arange(latents.shape[0], device=latents.device)
        normed = _norm(latents, self.norms[0])
        latents = latents + self.attend(normed, normed, tokens, tokens, None)
        places = torch.arange(source.shape[0], device=latents.device)
        latents = latents + self.look(_norm(latents, self.norms[1]), source, at, places, seen)
        normed = _norm(latents, self.norms[2])
        return latents + (functional.silu(normed @ self.gate) * (normed @ self.up)) @ self.down


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(_normal(width, width, generator))
        self.key = nn.Parameter(_normal(width, width, generator))
        self.value = nn.Parameter(_normal(width, width, generator))
        self.out = nn.Parameter(torch.zeros(width, width))
        self.rest = nn.Parameter(torch.zeros(2, heads, 1, width // heads))
        """A key and a value to attend to where there is nothing else worth it."""

    def forward(
        self,
        latents: torch.Tensor,
        others: torch.Tensor,
        at: torch.Tensor,
        places: torch.Tensor,
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        rope = Rope(kind="default", width=self.rest.shape[3], rotated=self.rest.shape[3] // 2 * 2)
        query = apply_rope(self._split(latents @ self.query), rope, at)
        key = apply_rope(self._split(others @ self.key), rope, places)
        value = self._split(others @ self.value)
        key, value = (
            torch.cat([rest, one], dim=1) for rest, one in zip(self.rest, (key, value), strict=True)
        )
        if seen is None:
            seen = places[None, :] <= at[:, None]
            seen = functional.pad(seen, (1, 0), value=True)
        attended = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen
        )
        rows: torch.Tensor = attended[0].transpose(0, 1).flatten(1) @ self.out
        return rows

    def _split(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(rows.shape[0], self.heads, -1).transpose(0, 1)


def _norm(latents: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(latents, (latents.shape[-1],), weight, 1e-6)


def _normal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    drawn: torch.Tensor = torch.randn(rows, columns, generator=generator) / rows**0.5
    return drawn
