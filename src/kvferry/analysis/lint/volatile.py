"""Texts that change by themselves: dates and times, identifiers, counters.

Owns their patterns: which of them stands where two texts part, and what a text looks like with all of them
replaced by their kind. Knows no prompt.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Changing",
    "Volatile",
    "holds_volatile",
    "meet_volatile",
    "shape",
    "volatile_kind",
    "without_volatile",
]

Volatile: TypeAlias = Literal["date", "id", "counter"]


def _words(text: str) -> str:
    """Words as alternatives of a pattern."""
    return "|".join(text.split())


_MONTHS = _words(
    "January February March April May June July August September October November December "
    "Januar Februar März Mai Juni Juli Oktober Dezember "
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre "
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre "
    "января февраля марта апреля мая июня июля августа сентября октября ноября декабря "
    "Jan Feb Mar Apr Jun Jul Aug Sept Sep Oct Nov Dec"
)
_DAYS = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday "
    "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag "
    "lundi mardi mercredi jeudi vendredi samedi dimanche "
    "lunes martes miércoles jueves viernes sábado domingo "
    "понедельник вторник среда четверг пятница суббота воскресенье"
)
_MONTH = rf"(?:{_MONTHS})\.?"
_DAY = rf"(?:{_DAYS})"
_SHORT_DAY = rf"(?:{_DAY}|Mon|Tue|Wed|Thu|Fri|Sat|Sun)\.?"
_TIME = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?"
    r"(?:\s?(?:Z|UTC|GMT|CEST|CET|EST|EDT|PST|PDT|MSK)\b)?(?:\s?[+-]\d{2}:?\d{2}\b)?"
)
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}"
    rf"|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?\b|{_MONTH}\s+\d{{4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.)?\s+(?:de\s+)?{_MONTH}(?:,?\s+(?:de\s+)?\d{{4}})?\b"
    r"|\d{4}年\d{1,2}月(?:\d{1,2}日)?)"
)
_MOMENT = re.compile(
    rf"(?<![\w.])(?:(?:{_SHORT_DAY},?\s+)?{_DATE}(?:(?:T|,?\s+(?:at\s+|um\s+|à\s+)?){_TIME})?"
    rf"|{_DAY}(?:,?\s+{_TIME})?|{_TIME}|20\d\d[01]\d[0-3]\d(?:T?\d{{6}}Z?)?(?!\d)"
    r"|1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?!\d))",
    re.IGNORECASE,
)
_DAY_ALONE = re.compile(rf"(?<![\w.]){_DAY}\b", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_NEAR = 24
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+(?:[-_][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_BEFORE, _BEHIND = 80, 160
_SHORTEST_ID = 8


class Changing(NamedTuple):
    """Something volatile that two texts hold at one place: its kind and its end in either."""

    kind: Volatile
    left_end: int
    right_end: int


def meet_volatile(left: str, left_at: int, right: str, right_at: int) -> Changing | None:
    """What stands at two offsets before which the texts agree and at which they part."""
    # Most differences are plain words: without a digit nearby only names of days are looked for.
    digits = _DIGIT.search(left, max(0, left_at - _NEAR), left_at + _NEAR) is not None
    found = _meet(_MOMENT if digits else _DAY_ALONE, left, left_at, right, right_at)
    if found is not None:
        return Changing("date", *found)
    found = _meet(_UUID, left, left_at, right, right_at)
    if found is not None:
        return Changing("id", *found)
    found = _meet(_NUMBER, left, left_at, right, right_at)
    if found is not None and not (_in_word(left, left_at, found[0]) or _in_word(right, right_at, found[1])):
        return Changing("counter", *found)
    found = _meet(_WORD, left, left_at, right, right_at)
    if found is None:
        return None
    start = _start(_WORD, left, left_at)
    kind = _pair(left[start : found[0]], right[right_at - (left_at - start) : found[1]])
    return None if kind is None else Changing(kind, *found)


def without_volatile(text: str) -> str:
    """The text with dates and identifiers replaced by their kind."""
    text = _UUID.sub("<id>", _MOMENT.sub("<date>", text))
    return _WORD.sub(lambda match: "<id>" if _is_id(match[0]) else match[0], text)


def holds_volatile(text: str) -> Volatile | None:
    """Whether a text has something in it that changes by itself: a date, a time or an identifier."""
    if _MOMENT.search(text):
        return "date"
    return "id" if without_volatile(text) != text else None


def volatile_kind(left: str, right: str) -> Volatile:
    """What two texts that are equal without volatile parts differ in: `date` if dates alone, else `id`."""
    return "date" if _MOMENT.sub("", left) == _MOMENT.sub("", right) else "id"


def shape(text: str) -> str:
    """What a text is like, without saying it: `<date>`, `<id>`, `<number>`, `<text, 34 characters>`."""
    if not text:
        return "<nothing>"
    if not text.strip():
        return f"<whitespace {ascii(text[:8])[1:-1]}>"
    whole = text.strip()
    if _MOMENT.fullmatch(whole):
        return "<date>"
    if _UUID.fullmatch(whole):
        return "<uuid>"
    if _NUMBER.fullmatch(whole):
        return "<number>"
    if _WORD.fullmatch(whole) and _is_id(whole):
        return f"<id, {len(whole)} characters>"
    return f"<text, {len(text)} characters>"


def _meet(
    pattern: re.Pattern[str], left: str, left_at: int, right: str, right_at: int
) -> tuple[int, int] | None:
    """Ends of two matches that begin equally far before the offsets and reach them."""
    for start, left_end in _spans(pattern, left, left_at):
        for other, right_end in _spans(pattern, right, right_at):
            if left_at - start == right_at - other and (left_end > left_at or right_end > right_at):
                return left_end, right_end
    return None


def _spans(pattern: re.Pattern[str], text: str, at: int) -> list[tuple[int, int]]:
    spans = []
    for match in pattern.finditer(text, max(0, at - _BEFORE), min(len(text), at + _BEHIND)):
        if match.start() > at:
            break
        if match.end() >= at:
            spans.append(match.span())
    return spans


def _start(pattern: re.Pattern[str], text: str, at: int) -> int:
    return min((start for start, _ in _spans(pattern, text, at)), default=at)


def _pair(left: str, right: str) -> Volatile | None:
    """What two different words at one place are."""
    parts, others = re.split(r"[-_]", left), re.split(r"[-_]", right)
    if len(parts) == len(others):
        differing = [(one, other) for one, other in zip(parts, others, strict=True) if one != other]
        if all(one.isdigit() and other.isdigit() for one, other in differing):
            return "counter"
    if (_is_id(left) and _could_be_id(right)) or (_is_id(right) and _could_be_id(left)):
        return "id"
    return None


def _is_id(word: str) -> bool:
    """Long, of letters and digits mixed: no word, no number."""
    if len(word) < _SHORTEST_ID:
        return False
    digits = sum(one.isdigit() for one in word)
    return digits >= 2 and any(one.isalpha() for one in word) and word.isascii()


def _could_be_id(word: str) -> bool:
    return len(word) >= _SHORTEST_ID and word.isascii()


def _in_word(text: str, at: int, end: int) -> bool:
    """Whether a number is part of a word, such as the 2 of `k2`."""
    start = _start(_NUMBER, text, at)
    return (start > 0 and (text[start - 1].isalpha() or text[start - 1] == "_")) or (
        end < len(text) and (text[end].isalpha() or text[end] == "_")
    )
