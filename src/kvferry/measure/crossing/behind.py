"""What a model says behind a given KV: logits of known tokens, with the positions that they really have.

Owns putting KV into a cache and reading on, with gradients or without. Knows nothing of where the KV is from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engines.transformers.capture import Captured, restore
from ...handoff.mapping.shapes import LayerKv, Prefill

__all__ = ["first_tokens", "freeze", "logits_behind", "suffix_nll"]


def freeze(model: Captured) -> None:
    """No gradient is kept for the model's own weights."""
    model.model.requires_grad_(False)


def first_tokens(prefill: Prefill, count: int) -> Prefill:
    """The first `count` tokens of a prefill."""
    layers = [LayerKv(layer.keys[:, :count], layer.values[:, :count]) for layer in prefill.layers]
    return Prefill(layers, prefill.positions[:count], prefill.length)


def logits_behind(
    model: Captured, kv: Prefill | None, token_ids: Sequence[int], position: int, *, last: int | None = None
) -> torch.Tensor:
    """Logits behind each of the last `last` tokens (None: all), float32 [tokens, vocabulary].

    The tokens stand at `position` and after it, behind `kv`, whose own positions may have gaps. Gradients go
    through to the KV where they are on.
    """
    device = model.model.device
    cache = None if kv is None or not kv.tokens else restore(model.model, kv.layers, kv.tokens)
    at = torch.arange(position, position + len(token_ids), device=device)
    answer = model.model(
        input_ids=torch.tensor([list(token_ids)], dtype=torch.int64, device=device),
        past_key_values=cache,
        position_ids=at[None],
        use_cache=cache is not None,
        logits_to_keep=last or 0,
    )
    logits: torch.Tensor = answer.logits[0].float()
    return logits


def suffix_nll(
    model: Captured,
    kv: Prefill | None,
    reread: Sequence[int],
    suffix: Sequence[int],
    position: int,
) -> torch.Tensor:
    """Mean negative log-likelihood of the suffix, nats a token, as a tensor that gradients go through.

    `reread` are the last tokens of the context, which the receiver reads itself behind `kv` (hold-back); they
    stand at `position`. With none the suffix's first token is given, not judged.
    """
    given = [*reread, *suffix[:-1]]
    judged = suffix if reread else suffix[1:]
    logits = logits_behind(model, kv, given, position, last=len(judged))
    wanted = torch.tensor(list(judged), dtype=torch.int64, device=logits.device)
    return torch.nn.functional.cross_entropy(logits, wanted)
