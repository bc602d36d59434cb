"""How like two KV caches are, vector by vector."""

from __future__ import annotations

import torch

__all__ = ["mean_cosine"]


def mean_cosine(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Mean cosine between the vectors of two tensors [..., width]; a pair of zeros counts as alike."""
    dot = (ours.double() * theirs.double()).sum(-1)
    norms = ours.double().norm(dim=-1) * theirs.double().norm(dim=-1)
    same = (ours == theirs).all(-1)
    return float(torch.where(same, 1.0, dot / norms.clamp_min(torch.finfo(torch.double).tiny)).mean())
