"""How much attention will care about an error in each key and value: causal weights for the fit.

From arXiv 2609.00891. The prompt is imagined to end at each of a few boundaries; the first query behind a
boundary attends to what was handed over, and the squared derivative of its output says what an error costs:

    r_V = sum a^2                 r_K = sum a^2 |v - o|^2 |q|^2 s^2

over the query heads that read the KV head, a the attention, o its output, s the factor on scores (1 / sqrt d
in most models). Every boundary counts the same. A position is judged only by queries that come after it.
"""

from __future__ import annotations

import torch

__all__ = ["BOUNDARIES", "boundaries", "sensitivity"]

BOUNDARIES = 32


def boundaries(tokens: int, count: int = BOUNDARIES) -> list[int]:
    """Where the prompt is imagined to end: log-spaced numbers of tokens from 1 to tokens - 1."""
    if tokens < 2:
        return []
    spaced = torch.logspace(0, float(torch.log10(torch.tensor(float(tokens - 1)))), count)
    return sorted({min(round(float(one)), tokens - 1) for one in spaced})


def sensitivity(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    count: int = BOUNDARIES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of every position for keys and for values, each [KV heads, tokens], of mean 1 over tokens.

    queries [query heads, tokens, width], keys and values [KV heads, tokens, width], all as attention sees
    them; `window` tokens are seen, the query's own included.
    """
    heads, tokens = keys.shape[0], keys.shape[1]
    for_keys = torch.zeros(heads, tokens, device=keys.device)
    for_values = torch.zeros_like(for_keys)
    for end in boundaries(tokens, count):
        begin = 0 if window is None else max(0, end + 1 - window)
        seen_keys, seen_values = keys[:, begin : end + 1].float(), values[:, begin : end + 1].float()
        query = queries[:, end].float().reshape(heads, -1, queries.shape[2])
        attention = (query @ seen_keys.transpose(1, 2) * scale).softmax(-1)
        output = attention @ seen_values
        squares = attention.square()
        length = query.square().sum(-1) * scale * scale
        # |v - o|^2 without the tensor of differences.
        apart = (
            seen_values.square().sum(-1)[:, None]
            - 2 * output @ seen_values.transpose(1, 2)
            + output.square().sum(-1, keepdim=True)
        ).clamp_min(0)
        for total, cost in (
            (for_values, squares.sum(1)),
            (for_keys, (squares * apart * length[..., None]).sum(1)),
        ):
            handed = cost[:, :-1]  # the query's own token is computed by the receiver
            if handed.shape[1]:
                total[:, begin:end] += handed / handed.mean(1, keepdim=True).clamp_min(1e-30)
    return _unit_mean(for_keys), _unit_mean(for_values)


def _unit_mean(weights: torch.Tensor) -> torch.Tensor:
    mean = weights.mean(1, keepdim=True)
    return torch.where(mean > 0, weights / mean.clamp_min(1e-30), torch.ones_like(weights))
