"""How many tokens lie before a character: by a given tokenizer, or bytes divided by four.

Owns the two ways of counting and the rule for a token that straddles a difference. Knows no tokenizer: it
gets a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .prompt import Prompt

__all__ = ["BYTES_PER_TOKEN", "Counting", "Encode", "by_bytes", "by_tokenizer"]

BYTES_PER_TOKEN = 4

Encode: TypeAlias = Callable[[str, bool], Sequence[int]]
"""(text, is it a rendered chat) to token ids."""


class Counting(Protocol):
    """Counts the tokens of a prompt."""

    described: str
    """In words, for whoever reads the figures."""

    def before(self, prompt: Prompt, offset: int) -> int:
        """Tokens that lie wholly before a character of the prompt."""


class _Bytes:
    described = f"estimated: UTF-8 bytes / {BYTES_PER_TOKEN} (give --tokenizer for exact counts)"

    def before(self, prompt: Prompt, offset: int) -> int:
        text = prompt.text
        size = offset if text.isascii() else len(text[:offset].encode("utf-8", "surrogatepass"))
        return size // BYTES_PER_TOKEN


class _Tokenizer:
    def __init__(self, encode: Encode, described: str) -> None:
        self._encode = encode
        self.described = described

    def before(self, prompt: Prompt, offset: int) -> int:
        chat = not any(piece.kind == "prompt" for piece in prompt.pieces)
        if prompt.ids is None:
            prompt.ids = np.asarray(self._encode(prompt.text, chat), dtype=np.int64)
        whole: npt.NDArray[np.int64] = prompt.ids
        if offset >= len(prompt.text):
            return len(whole)
        part = np.asarray(self._encode(prompt.text[:offset], chat), dtype=np.int64)
        size = min(len(part), len(whole))
        # The last token before the offset may be another one in the whole text, where it goes on.
        differing = np.flatnonzero(part[:size] != whole[:size])
        return int(differing[0]) if len(differing) else size


def by_bytes() -> Counting:
    """The estimate: UTF-8 bytes divided by four."""
    return _Bytes()


def by_tokenizer(encode: Encode, described: str) -> Counting:
    """Exact counts, by a function from a text to its token ids; its second argument says that it is a
    rendered chat."""
    return _Tokenizer(encode, described)
