"""The quality of codecs on one text: its prefix is computed once, carried by each codec, and continued.

Everything is compared with the same prefix as it was computed. The continuation is short beside the prefix,
so that almost all that it attends to has been through the codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...engines.transformers.runner import Runner
from ...store.codec import Codec
from .attention import Witness, attention_errors
from .carried import fork, through
from .continuation import agreeing_tokens, greedy, mean_nll, text_logits
from .likeness import mean_cosine

__all__ = ["CodecQuality", "measure_codecs", "prefix_kv"]

_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class CodecQuality:
    """One codec on one text."""

    key_cosine: float
    value_cosine: float
    """Means over layers, heads and tokens."""
    attention_error: float
    """Relative L2 error of attention's output with the real queries, mean over layers."""
    worst_attention_error: float
    """Of the layer where it is largest."""
    nll_difference: float
    """Nats a token, of the text's continuation: more than 0 where the codec made it less likely."""
    top1_agreement: float
    """Share of positions of the continuation whose likeliest token is the same."""
    greedy_agreement: float
    """Share of the tokens of a greedy continuation that come before the first that differs."""


def prefix_kv(runner: Runner, token_ids: Sequence[int]) -> torch.Tensor:
    """The KV of a prompt, [layers, 2, KV heads, tokens, width]."""
    span = runner.new_span(len(token_ids))
    for start in range(0, len(token_ids), _CHUNK_TOKENS):
        runner.prefill_chunk(span, token_ids[start : start + _CHUNK_TOKENS])
    return span.kv


def measure_codecs(
    runner: Runner,
    token_ids: Sequence[int],
    codecs: Mapping[str, Codec],
    *,
    prefix_tokens: int,
    greedy_tokens: int,
) -> dict[str, CodecQuality]:
    """What each codec does to the first `prefix_tokens` of a text, and so to the rest of it.

    `prefix_tokens` are whole blocks; the text behind them is what the likelihood is taken of. Raises
    ValueError where it has fewer than two tokens.
    """
    text, following = token_ids[prefix_tokens:-1], token_ids[prefix_tokens + 1 :]
    if not text:
        raise ValueError(f"{len(token_ids)} tokens leave nothing to continue behind {prefix_tokens}")
    exact = prefix_kv(runner, token_ids[:prefix_tokens])
    capacity = prefix_tokens + max(len(text), greedy_tokens)
    with Witness() as witness:
        logits = text_logits(runner, fork(runner, exact, capacity), text)
    said = greedy(runner, fork(runner, exact, capacity), text[0], greedy_tokens)
    nll, likeliest = mean_nll(logits, following), logits.argmax(-1)
    found = {}
    for name, codec in codecs.items():
        kv = through(codec, exact)
        errors = attention_errors(witness.calls, kv)
        theirs = text_logits(runner, fork(runner, kv, capacity), text)
        repeated = greedy(runner, fork(runner, kv, capacity), text[0], greedy_tokens)
        found[name] = CodecQuality(
            key_cosine=mean_cosine(kv[:, 0], exact[:, 0]),
            value_cosine=mean_cosine(kv[:, 1], exact[:, 1]),
            attention_error=sum(errors) / len(errors),
            worst_attention_error=max(errors),
            nll_difference=mean_nll(theirs, following) - nll,
            top1_agreement=float((theirs.argmax(-1) == likeliest).double().mean()),
            greedy_agreement=agreeing_tokens(repeated, said) / greedy_tokens,
        )
    return found
