"""Floating-point operations of a prefill: by the linear rule, and with attention counted.

    linear      2 N n attention   2 (dk + dv) Hq for every pair of a token and one that it sees: n^2 / 2 of
    them without a window

N is the number of weights that compute a token. The linear rule is what most estimates use; it says nothing
of a long context: for Qwen3-8B attention adds 7 % at 4k tokens, 45 % at 25k and 118 % at 64k. What linear
attention and state spaces add does not grow faster than n and is not counted.
"""

from __future__ import annotations

from .layers import Attention, Latent, Model

__all__ = ["attention_flop", "linear_flop"]


def linear_flop(parameters: float, tokens: int) -> float:
    """2 N n."""
    return 2.0 * parameters * tokens


def attention_flop(model: Model, tokens: int) -> float | None:
    """What attention's scores and sums add; None where the config does not give the number of heads."""
    total = 0.0
    for layer in model.layers:
        part = layer.attention
        if part is None:
            continue
        if isinstance(part, Latent):
            if part.nope_width is None or part.value_width is None:
                return None
            width = part.heads * (part.nope_width + part.rope_width + part.value_width)
        elif part.query_heads is None:
            return None
        else:
            width = part.query_heads * (part.key_width + part.value_width)
        total += 2.0 * width * _pairs(part, tokens)
    return total


def _pairs(part: Attention | Latent, tokens: int) -> float:
    window = part.window if isinstance(part, Attention) else None
    if window is None or tokens <= window:
        return tokens * tokens / 2
    if isinstance(part, Attention) and part.chunked:
        whole, rest = divmod(tokens, window)
        return whole * window * window / 2 + rest * rest / 2
    return window * tokens - window * window / 2
