"""What the model says behind a given KV: of a known text, and of its own accord."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span

__all__ = ["agreeing_tokens", "greedy", "mean_nll", "text_logits"]


def text_logits(runner: Runner, span: Span, token_ids: Sequence[int]) -> torch.Tensor:
    """Append known tokens to the span; the logits behind each, float32 [tokens, vocabulary]."""
    with torch.inference_mode():
        answer = runner.model(
            input_ids=torch.tensor([list(token_ids)], dtype=torch.long), past_key_values=span, use_cache=True
        )
    logits: torch.Tensor = answer.logits[0].float()
    return logits


def mean_nll(logits: torch.Tensor, following: Sequence[int]) -> float:
    """Mean negative log-likelihood, in nats a token, of the token that really followed each."""
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(list(following))))


def greedy(runner: Runner, span: Span, token_id: int, count: int) -> list[int]:
    """`count` tokens, the likeliest each, after `token_id`; the end of a text ends nothing."""
    said: list[int] = []
    for _ in range(count):
        token_id = int(runner.decode(span, token_id).argmax())
        said.append(token_id)
    return said


def agreeing_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    return next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b),
        len(ours),
    )
