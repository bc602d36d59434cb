"""What is trained and judged on: a context that both models read, and the suffix that the target says.

Owns cutting pieces out of documents, the same ones for the same seed and number, whatever came before: so a
training that was killed goes on with the very piece that was next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.transformers.capture import Captured
from ...errors import UsageError
from ...handoff.mapping.contract import Context
from ...handoff.mapping.texts import Document
from ..retention.reader import Reader, read_context
from ..retention.tasks.library import digest_of
from .facts import fact_documents

__all__ = ["Piece", "Pieces", "check_sizes"]

_UNUSED = 500_000
"""Numbers of pieces from here on are not trained on."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Context and suffix of one document."""

    document: str
    context: Context
    suffix: tuple[int, ...]
    """Ids of the target."""

    @property
    def tokens(self) -> int:
        """Of the target, both parts."""
        return len(self.context.target_ids) + len(self.suffix)


def check_sizes(*, context_tokens: int, suffix_tokens: int, facts_share: float) -> None:
    """Raise UsageError for pieces that cannot be cut, whatever the text."""
    if context_tokens < 8 or suffix_tokens < 2:
        raise UsageError("a context has at least 8 tokens, a suffix at least 2")
    if not 0 <= facts_share <= 1:
        raise UsageError(f"facts share {facts_share}: between 0 and 1")


class Pieces:
    """Pieces by number. A share of them are documents of made-up facts whose suffix states them again.

    `documents` are trained on. `validation` are others, which choose: lambda of the closed form, and whether
    training has helped.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        validation: Sequence[Document],
        source: Captured,
        target: Captured,
        *,
        context_tokens: int,
        suffix_tokens: int,
        facts_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        check_sizes(context_tokens=context_tokens, suffix_tokens=suffix_tokens, facts_share=facts_share)
        if not (documents and validation) and facts_share < 1:
            raise UsageError("no documents to train on and validate by: give text, or a facts share of 1")
        self._documents, self._validation = documents, validation
        self._source, self._target = Reader(source), Reader(target)
        self._context, self._suffix = context_tokens, suffix_tokens
        self._share, self._seed = facts_share, seed

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the texts that are trained on, in their order, then of those that validate."""
        return tuple(digest_of(one.text) for one in (*self._documents, *self._validation))

    def piece(self, number: int, *, validation: bool = False) -> Piece:
        """Piece `number`, of a document to train on or of one that validates.

        Raises UsageError where no document is long enough for one.
        """
        draw = random.Random(f"{self._seed} {number}")
        if draw.random() < self._share:
            return self._facts(number)
        documents = self._validation if validation else self._documents
        for _ in range(100):
            document = draw.choice(documents)
            found = self._window(document, draw)
            if found is not None:
                return found
        side = "validation" if validation else "training"
        raise UsageError(
            f"{side} documents are too short for {self._context} tokens of context "
            f"and {self._suffix} of suffix"
        )

    def held_out(self, documents: Sequence[Document], count: int) -> list[Piece]:
        """At most `count` pieces, each of another document, the same ones each time."""
        found: list[Piece] = []
        for document in documents:
            if len(found) == count:
                break
            piece = self._window(document, random.Random(f"{self._seed} {document.name}"))
            if piece is not None:
                found.append(piece)
        return found

    def validation(self, count: int) -> list[Piece]:
        """Pieces of documents that validate, facts among them in their share: they say whether training has
        helped."""
        facts = round(count * self._share)
        return [
            *self.held_out(self._validation, count - facts),
            *(self._facts(_UNUSED + number) for number in range(facts)),
        ]

    def _window(self, document: Document, draw: random.Random) -> Piece | None:
        wanted = self._context + self._suffix
        # Hardly a token is longer than this on average; what is not needed is not encoded.
        room = max(1, len(document.text) - 3 * wanted)
        start = document.text.rfind("\n", 0, draw.randrange(room)) + 1
        ids, spans = self._target.tokens(document.text[start : start + 8 * wanted])
        cut = self._context
        while 0 < cut < len(ids) and spans[cut][0] < spans[cut - 1][1]:
            cut += 1  # a character that is cut into bytes stays whole
        if len(ids) < cut + self._suffix:
            return None
        text = document.text[start : start + spans[cut - 1][1]]
        ours = self._source.tokens(text)
        context = Context(text, ours[0], ids[:cut], ours[1], spans[:cut])
        return Piece(document.name, context, ids[cut : cut + self._suffix])

    def _facts(self, number: int) -> Piece:
        (document,) = fact_documents(1, seed=self._seed * 1_000_003 + number, side="train")
        context = read_context(document.text, self._source, self._target)
        ids, spans = self._target.tokens(document.restated)
        said = tuple(one for one, (start, stop) in zip(ids, spans, strict=True) if stop > start)
        return Piece(document.name, context, said[: self._suffix])
