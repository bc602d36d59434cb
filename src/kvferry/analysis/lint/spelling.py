"""Detects texts that look alike and are spelled differently: spaces, line ends, Unicode forms, quotes."""

from __future__ import annotations

import unicodedata

from .jump import Jump
from .prompt import Prompt, common_length

__all__ = ["blanks_behind", "folded", "folded_words", "meet_spelling"]

_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
_LOOKALIKE = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2010": "-", "\u2011": "-",
        "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2026": "...",
    }
)  # fmt: skip
_AGREE = 24
"""Characters behind the difference that must agree, blanks set aside."""
_LEAST = 12
_LONGEST_FORM = 6
"""Characters that one letter may take: a base and its marks."""


def meet_spelling(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Blanks differ, or one letter is written in two ways, and the texts then go on alike."""
    found = _blanks(left.text, left_at, right.text, right_at) or _letters(
        left.text, left_at, right.text, right_at
    )
    return [found] if found is not None else []


def blanks_behind(text: str, at: int) -> int:
    """The first offset from `at` on that holds something visible."""
    while at < len(text) and (text[at].isspace() or text[at] in _INVISIBLE):
        at += 1
    return at


def folded(text: str) -> str:
    """One form for all spellings: compatibility form, plain quotes and dashes, no blanks."""
    return "".join(one for one in folded_words(text) if not one.isspace() and one not in _INVISIBLE)


def folded_words(text: str) -> str:
    """The same, blanks kept."""
    return unicodedata.normalize("NFKC", text).translate(_LOOKALIKE)


def _blanks(left: str, left_at: int, right: str, right_at: int) -> Jump | None:
    back = 0
    while back < left_at and (left[left_at - back - 1].isspace() or left[left_at - back - 1] in _INVISIBLE):
        back += 1
    after, other_after = blanks_behind(left, left_at), blanks_behind(right, right_at)
    blank, other = left[left_at - back : after], right[right_at - back : other_after]
    if blank == other or not _agree(left, after, right, other_after):
        return None
    return Jump("whitespace", after, other_after, f"{ascii(blank[:12])[1:-1]} / {ascii(other[:12])[1:-1]}")


def _letters(left: str, left_at: int, right: str, right_at: int) -> Jump | None:
    near, other_near = left[max(0, left_at - 1) : left_at + 8], right[max(0, right_at - 1) : right_at + 8]
    if near.isascii() and other_near.isascii():
        return None
    # A mark may differ while its base letter agreed: the form begins one before.
    for back in (0, 1):
        start, other_start = left_at - back, right_at - back
        if start < 0:
            break
        for size in range(1, _LONGEST_FORM):
            for other_size in range(1, _LONGEST_FORM):
                one = left[start : start + size]
                two = right[other_start : other_start + other_size]
                if one == two or len(one) < size or len(two) < other_size or folded(one) != folded(two):
                    continue
                if _agree(left, start + size, right, other_start + other_size):
                    marks = f"U+{ord(one[-1]):04X} / U+{ord(two[-1]):04X}"
                    return Jump("whitespace", start + size, other_start + other_size, marks)
    return None


def _agree(left: str, left_at: int, right: str, right_at: int) -> bool:
    if common_length(left, left_at, right, right_at) >= _AGREE:
        return True
    one, two = (
        folded(left[left_at : left_at + 2 * _AGREE])[:_AGREE],
        folded(right[right_at : right_at + 2 * _AGREE])[:_AGREE],
    )
    if one == two:
        return bool(one) or left_at == len(left) or right_at == len(right)
    room = min(len(one), len(two))
    return _LEAST <= room < _AGREE and one[:room] == two[:room]
