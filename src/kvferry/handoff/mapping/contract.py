"""What a map is to whoever measures or uses one, and a text as both of its models read it.

Owns the contract and nothing else: a closed-form map and a learned one, token by token or across two
tokenizers, are all asked the same way. Knows no model library, no tokenizer and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .shapes import Prefill

__all__ = ["Context", "KvMap"]


@dataclass(frozen=True, slots=True)
class Context:
    """One text as both models read it."""

    text: str
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    source_spans: tuple[tuple[int, int], ...]
    """[start, stop) characters of each source token; of what a tokenizer adds, an empty span."""
    target_spans: tuple[tuple[int, int], ...]


class KvMap(Protocol):
    """Something that makes the target's KV of a context out of the source's."""

    @property
    def name(self) -> str:
        """What it is, for a table's row."""
        ...

    @property
    def trained_tokens(self) -> int:
        """Tokens that it was fitted or trained on."""
        ...

    def carry(self, context: Context, source: Prefill, positions: Tensor) -> Prefill:
        """KV of the context in the target's shapes.

        `source` is the source's prefill of `context.source_ids`, `positions` are those of the target's
        tokens: int64 [len(context.target_ids)]. Raises ModelError where the two do not fit the map.
        """
        ...
