"""Computing a prompt in the engine's chunks, and what that takes here.

Owns the size of a chunk and the measurement that both roles begin with.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...clock import Clock
from ...cost.prefill import PrefillModel
from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span

__all__ = ["PREFILL_CHUNK_TOKENS", "measured_prefill", "prefill_in_chunks"]

PREFILL_CHUNK_TOKENS = 256


def prefill_in_chunks(
    runner: Runner, span: Span, token_ids: Sequence[int], clock: Clock, model: PrefillModel | None = None
) -> None:
    """Compute tokens in the engine's chunks; `model` learns from each."""
    for start in range(0, len(token_ids), PREFILL_CHUNK_TOKENS):
        chunk = token_ids[start : start + PREFILL_CHUNK_TOKENS]
        began = clock.now()
        runner.prefill_chunk(span, chunk)
        if model is not None:
            model.observe(len(chunk), start, clock.now() - began)


def measured_prefill(runner: Runner, clock: Clock) -> PrefillModel:
    """A few timed steps, so that the first request can be priced; the very first one only warms up."""
    model = PrefillModel()
    chunk = min(PREFILL_CHUNK_TOKENS, max(8, runner.max_tokens // 4))
    sizes = (chunk, chunk, max(4, chunk // 8), chunk)
    span = runner.new_span(sum(sizes))
    for number, size in enumerate(sizes):
        context = span.length
        if context + size > runner.max_tokens:
            break
        ids = [(7 * (context + i) + 1) % runner.vocabulary for i in range(size)]
        began = clock.now()
        runner.prefill_chunk(span, ids)
        if number:
            model.observe(size, context, clock.now() - began)
    return model
