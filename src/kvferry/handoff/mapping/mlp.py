"""A small network for what the line leaves, where a line is not enough.

Owns its training and the decision to keep it. It learns the residual of the ridge from standardised inputs,
so the worst that it can do is nothing, and it is kept only where rows of other documents say that it helps
by more than a margin. It is the same for equal rows and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .ridge import Line

__all__ = ["Mlp", "MlpSettings", "improve"]


@dataclass(frozen=True, slots=True)
class MlpSettings:
    """How it is trained."""

    hidden: int = 128
    steps: int = 300
    batch_rows: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    margin: float = 0.01
    """Held-out R2 that it must add to be kept."""
    seed: int = 13


@dataclass(frozen=True, slots=True)
class Mlp:
    """x -> gelu(x A + a) B + b for each panel: A [panels, p, hidden], B [panels, hidden, q]."""

    into: torch.Tensor
    into_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [panels, rows, p] -> [panels, rows, q], to be added to the line."""
        hidden = torch.nn.functional.gelu(torch.baddbmm(self.into_bias[:, None], x, self.into))
        return torch.baddbmm(self.out_bias[:, None], hidden, self.out)

    @property
    def parameters(self) -> int:
        return sum(part.numel() for part in self.tensors().values())

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Its parts by the names under which a file holds them."""
        return {
            "into": self.into,
            "into_bias": self.into_bias,
            "out": self.out,
            "out_bias": self.out_bias,
        }


def improve(
    line: Line,
    x: torch.Tensor,
    y: torch.Tensor,
    held_x: torch.Tensor,
    held_y: torch.Tensor,
    settings: MlpSettings = MlpSettings(),
) -> tuple[Mlp | None, float, float]:
    """Train on rows, judge on held-out rows: (network or None, R2 of the line, R2 with the network).

    x [panels, rows, p], y [panels, rows, q]; R2 pools all numbers of all panels.
    """
    line = Line(line.weight.float(), line.bias.float())
    left, held_left = y.float() - line(x.float()), held_y.float() - line(held_x.float())
    mlp = _train(x.float(), left, settings)
    before = _r2(held_left, held_y)
    after = _r2(held_left - mlp(held_x.float()), held_y)
    return (mlp if after > before + settings.margin else None), before, after


def _train(x: torch.Tensor, left: torch.Tensor, settings: MlpSettings) -> Mlp:
    panels, rows, inputs = x.shape
    generator = torch.Generator(device="cpu").manual_seed(settings.seed)
    mean, spread = x.mean(1), x.std(1).clamp_min(1e-6)
    size = left.std().clamp_min(1e-12)
    inner = torch.randn(panels, inputs, settings.hidden, generator=generator).to(x.device) / inputs**0.5
    parts = [
        inner,
        torch.zeros(panels, settings.hidden, device=x.device),
        torch.zeros(panels, settings.hidden, left.shape[2], device=x.device),
        torch.zeros(panels, left.shape[2], device=x.device),
    ]
    for part in parts:
        part.requires_grad_(True)
    optimizer = torch.optim.AdamW(parts, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    network = Mlp(*parts)
    with torch.enable_grad():
        for _ in range(settings.steps):
            chosen = torch.randint(rows, (settings.batch_rows,), generator=generator).to(x.device)
            inputs_here = (x[:, chosen] - mean[:, None]) / spread[:, None]
            loss = (network(inputs_here) - left[:, chosen] / size).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    # Standardising is folded in: applying it costs nothing.
    into = parts[0].detach() / spread[:, :, None]
    bias = parts[1].detach() - (mean[:, None] @ into)[:, 0]
    return Mlp(into, bias, parts[2].detach() * size, parts[3].detach() * size)


def _r2(left: torch.Tensor, y: torch.Tensor) -> float:
    wide = y.double()
    total = (wide - wide.mean(1, keepdim=True)).square().sum()
    return float(1 - left.double().square().sum() / total.clamp_min(1e-30))
