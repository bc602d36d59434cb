"""Which prompts are meant to be alike: families, found by what stands at the head of a prompt.

Owns the likeness: words of the system messages with everything volatile set aside, and the names of the
tools, sketched by minhash. Prompts of one family may differ in any way that lint looks for; that is the
point.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from .prompt import Prompt
from .spelling import folded_words

__all__ = ["Families"]

_HASHES = 64
_ROWS = 2
_ALIKE = 0.3
"""Estimated share of common shingles from which two heads are of one family."""
_SHINGLE = 3
_HEAD_CHARACTERS = 12_000
_FEW_WORDS = 8
_MOST_FAMILIES = 2_000
_MOST_HEADS = 20_000
_PRIME = np.uint64((1 << 31) - 1)
_WORD = re.compile(r"\w+")


class Families:
    """Numbers families from 0 in order of appearance."""

    def __init__(self) -> None:
        random = np.random.default_rng(20260)
        self._a: npt.NDArray[np.uint64] = random.integers(1, _PRIME, (_HASHES, 1), dtype=np.uint64)
        self._b: npt.NDArray[np.uint64] = random.integers(0, _PRIME, (_HASHES, 1), dtype=np.uint64)
        self._sketches: list[npt.NDArray[np.uint64]] = []
        self._bands: dict[tuple[str, int, bytes], list[int]] = {}
        self._heads: OrderedDict[int, int] = OrderedDict()

    def of(self, prompt: Prompt) -> int | None:
        """The family of a prompt; None once there are too many families to open another."""
        words = _words(prompt)
        key = hash((prompt.model, tuple(words)))
        known = self._heads.get(key)
        if known is not None:
            return known
        family = self._find(prompt.model, words)
        if family is not None:
            self._heads[key] = family
            if len(self._heads) > _MOST_HEADS:
                self._heads.popitem(last=False)
        return family

    def _find(self, model: str, words: list[str]) -> int | None:
        sketch = self._sketch(words)
        bands = [(model, row, sketch[row : row + _ROWS].tobytes()) for row in range(0, _HASHES, _ROWS)]
        candidates = {family for band in bands for family in self._bands.get(band, ())}
        alike = [(float(np.mean(self._sketches[family] == sketch)), -family) for family in candidates]
        best = max(alike, default=(0.0, 0))
        if best[0] >= _ALIKE:
            return -best[1]
        if len(self._sketches) >= _MOST_FAMILIES:
            return None
        family = len(self._sketches)
        self._sketches.append(sketch)
        for band in bands:
            self._bands.setdefault(band, []).append(family)
        return family

    def _sketch(self, words: list[str]) -> npt.NDArray[np.uint64]:
        shingles = {" ".join(words[at : at + _SHINGLE]) for at in range(max(1, len(words) - _SHINGLE + 1))}
        hashes = np.array(
            [zlib.crc32(one.encode("utf-8", "surrogatepass")) for one in sorted(shingles)], np.uint64
        )
        sketch: npt.NDArray[np.uint64] = ((self._a * (hashes % _PRIME) + self._b) % _PRIME).min(axis=1)
        return sketch


def _words(prompt: Prompt) -> list[str]:
    """What a prompt's head says, whatever the order of its tools, its dates and its spelling."""
    system = [one for one in prompt.messages if one.role in ("system", "developer")]
    text = "\n".join(prompt.text[one.start : one.end] for one in system)[:_HEAD_CHARACTERS]
    words = _plain_words(text)
    names = sorted({one.name for one in prompt.tools if one.name})
    words += names
    if len(words) < _FEW_WORDS:
        first = next((one for one in prompt.pieces if one.role == "user" or one.kind == "prompt"), None)
        if first is not None:
            words += _plain_words(prompt.text[first.start : first.end][:_HEAD_CHARACTERS])
    return words


def _plain_words(text: str) -> list[str]:
    """Words without the ones that hold digits: dates, numbers and identifiers tell nothing of a family."""
    plain = text if text.isascii() else folded_words(text)
    return [one for one in _WORD.findall(plain.lower()) if one.isalpha()]
