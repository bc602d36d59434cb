"""One text as two models read it: ids and the characters that each stands for.

Owns asking a tokenizer for spans. Knows nothing of alignment, nor of what the text is for.
"""

from __future__ import annotations

from ...engines.transformers.capture import Captured
from ...errors import ModelError
from ...handoff.crossing.align import Span
from ...handoff.mapping.contract import Context

__all__ = ["context_of", "leading_marks", "spans_of"]


def spans_of(model: Captured, text: str) -> tuple[tuple[int, ...], tuple[Span, ...]]:
    """Token ids of a text, with what the tokenizer puts before one, and the characters of each.

    Raises ModelError where the tokenizer cannot say.
    """
    if model.tokenizer is None or not getattr(model.tokenizer, "is_fast", False):
        raise ModelError(f"{model.kv.name}'s tokenizer does not say which characters a token stands for")
    found = model.tokenizer(text, return_offsets_mapping=True, verbose=False)
    ids = tuple(int(one) for one in found["input_ids"])
    return ids, tuple((int(start), int(stop)) for start, stop in found["offset_mapping"])


def context_of(text: str, source: Captured, target: Captured) -> Context:
    """The whole text, read by both."""
    ours, theirs = spans_of(source, text), spans_of(target, text)
    return Context(text, ours[0], theirs[0], ours[1], theirs[1])


def leading_marks(spans: tuple[Span, ...]) -> int:
    """How many tokens a tokenizer has put before the text: without them a model may not work."""
    count = 0
    while count < len(spans) and spans[count][0] == spans[count][1] == 0:
        count += 1
    return count
