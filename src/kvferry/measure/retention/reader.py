"""A model that reads on from KV it is given: what it thinks of texts behind a context.

Owns tokens with their characters, contexts as two models read them, and the logits behind given KV. The KV
goes into a cache by `restore`, so that sliding windows see what they would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...engines.transformers.capture import Captured, restore
from ...errors import ModelError
from ...handoff.mapping.contract import Context
from ...handoff.mapping.shapes import LayerKv, Prefill

__all__ = ["Reader", "leading_marks", "read_context"]

_BACK = 32
"""Characters that a cut goes back at most to fall between words: text without blanks has none nearby."""


class Reader:
    """`model` with a tokenizer that tells characters. Raises ModelError for one that does not."""

    def __init__(self, model: Captured) -> None:
        self.model, self.kv = model, model.kv
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(
                f"{model.kv.name} needs a tokenizer.json: its tokenizer does not say which characters a "
                "token stands for"
            )

    def tokens(
        self, text: str, *, specials: bool = True
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Token ids, and the characters [start, stop) of each: none of what the tokenizer adds."""
        found = self.model.tokenizer(
            text, verbose=False, add_special_tokens=specials, return_offsets_mapping=True
        )
        return tuple(found["input_ids"]), tuple(
            (int(start), int(stop)) for start, stop in found["offset_mapping"]
        )

    def continued(self, before: str, text: str) -> tuple[int, ...]:
        """Tokens of `text` as it stands behind `before`; cut on its own where a token would span both."""
        return self._continued(before, text)[0]

    def characters(self, before: str, text: str, tokens: int) -> int:
        """How many characters of `text` the first `tokens` of `continued` stand for."""
        ends = self._continued(before, text)[1]
        return len(text) if tokens >= len(ends) else max(ends[:tokens], default=0)

    def _continued(self, before: str, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens, and where in `text` each ends."""
        (whole, spans), (first, _) = self.tokens(before + text), self.tokens(before)
        start = len(before)
        if whole[: len(first)] != first:
            (whole, spans), first, start = self.tokens(text, specials=False), (), 0
        return whole[len(first) :], tuple(max(0, stop - start) for _, stop in spans[len(first) :])

    def cut(self, text: str, tokens: int) -> int:
        """How many characters the first `tokens` tokens of a text are, back to the end of a word or line.

        Where there is no such end within 32 characters, to the last token's own.
        """
        if tokens < 1:
            return 0
        spans = self.tokens(text, specials=False)[1]
        if len(spans) <= tokens:
            return len(text)
        stop = spans[tokens - 1][1]
        space = max(text.rfind(" ", 0, stop + 1), text.rfind("\n", 0, stop + 1))
        # The space belongs to the word behind it, as most tokenizers have it.
        return space if space > 0 and stop - space <= _BACK else stop

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0) -> Prefill:
        return self.model.prefill(token_ids, offset=offset)

    @torch.inference_mode()
    def behind(
        self,
        layers: Sequence[LayerKv] | None,
        start: int,
        first: Sequence[int],
        rows: Sequence[Sequence[int]],
    ) -> list[torch.Tensor]:
        """Log-probabilities at each token of each row, float32 [tokens, vocabulary] a row.

        The model has the KV of `layers` (None: nothing), reads `first` (one token at least), which begins at
        position `start`, and then each row apart. What is at a token of a row is said before it is read.
        """
        longest = max(len(row) for row in rows)
        width = len(first) + longest - 1
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        for at, row in enumerate(rows):
            known = [*first, *row][:-1]
            ids[at, : len(known)] = torch.tensor(known)
        device = self.model.model.device
        options: dict[str, Any] = {}
        if layers is not None and layers[0].keys.shape[1]:
            cache = restore(self.model.model, layers, layers[0].keys.shape[1])
            if len(rows) > 1:
                cache.batch_repeat_interleave(len(rows))
            options["past_key_values"] = cache
        positions = torch.arange(start, start + width, device=device).expand(len(rows), -1)
        logits = self.model.model(
            input_ids=ids.to(device),
            position_ids=positions,
            use_cache=layers is not None,
            logits_to_keep=longest,
            **options,
        ).logits.float()
        said = torch.log_softmax(logits, dim=-1)
        return [said[at, : len(row)] for at, row in enumerate(rows)]

    @torch.inference_mode()
    def read_on(
        self, layers: Sequence[LayerKv], token_ids: Sequence[int]
    ) -> tuple[torch.Tensor, list[LayerKv]]:
        """Read tokens behind the KV of `layers`, which begins at position 0.

        Log-probabilities behind each token, [tokens, vocabulary], and the tokens' own KV. Raises ModelError
        for more tokens than a sliding layer keeps.
        """
        held, count = layers[0].keys.shape[1], len(token_ids)
        for index, shape in enumerate(self.kv.layers):
            if shape.window is not None and count > shape.window - 1:
                raise ModelError(f"layer {index} keeps {shape.window - 1} positions, not {count} at once")
        cache = restore(self.model.model, layers, held)
        device = self.model.model.device
        logits = self.model.model(
            input_ids=torch.tensor([list(token_ids)], device=device),
            position_ids=torch.arange(held, held + count, device=device)[None],
            past_key_values=cache,
            use_cache=True,
        ).logits[0]
        kept: list[Any] = list(cache.layers)
        own = [LayerKv(one.keys[0][:, -count:], one.values[0][:, -count:]) for one in kept]
        return torch.log_softmax(logits.float(), dim=-1), own


def leading_marks(spans: Sequence[tuple[int, int]]) -> int:
    """How many tokens a tokenizer has put before the text: without them a model may not work."""
    return next((at for at, (start, stop) in enumerate(spans) if stop > start), len(spans))


def read_context(text: str, source: Reader, target: Reader) -> Context:
    """One text as both models read it, with what each tokenizer puts before one."""
    ours, theirs = source.tokens(text), target.tokens(text)
    return Context(
        text=text, source_ids=ours[0], target_ids=theirs[0], source_spans=ours[1], target_spans=theirs[1]
    )
