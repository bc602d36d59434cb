"""Detects a chat template that changed: other marks around the same messages."""

from __future__ import annotations

import re

from .jump import Jump
from .prompt import Prompt
from .spelling import folded

__all__ = ["meet_markup", "meet_setup"]

_MARK = (
    r"<\|[^<>|]{1,48}\|>|<｜[^<>｜]{1,48}｜>|</?s>|\[/?(?:INST|AVAILABLE_TOOLS|SYSTEM_PROMPT)\]|<</?SYS>>"
    r"|<(?:start|end)_of_turn>|<[be]os>|\[gMASK\]|<sop>|###\s?(?:System|User|Assistant|Instruction|Response|Human|Input):?"
    r"|(?:^|(?<=\n))(?:Human|Assistant|User|System|USER|ASSISTANT|SYSTEM):"
)
_ROLE = r"(?:system|user|assistant|tool|model|developer|ipython)(?=\n|<|$)"
_RUN = re.compile(rf"(?:{_MARK}|{_ROLE}|\s)*")
_ONE = re.compile(_MARK)
_BACK = 48
_AGREE = 16


def meet_markup(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Template marks differ here, and the text behind them agrees."""
    for back in _starts(left.text, left_at):
        if back > right_at:
            continue
        run, other = _RUN.match(left.text, left_at - back), _RUN.match(right.text, right_at - back)
        if run is None or other is None or run[0] == other[0]:
            continue
        if (
            run.end() < left_at
            or other.end() < right_at
            or not (_ONE.search(run[0]) or _ONE.search(other[0]))
        ):
            continue
        one = folded(left.text[run.end() : run.end() + 2 * _AGREE])[:_AGREE]
        two = folded(right.text[other.end() : other.end() + 2 * _AGREE])[:_AGREE]
        room = min(len(one), len(two))
        # A short message ends at the next mark, which differs too.
        if one[:room] == two[:room] or _short_alike(one, two):
            return [Jump("template", run.end(), other.end(), "", "the chat template's marks")]
    return []


def meet_setup(left: Prompt, right: Prompt) -> list[Jump]:
    """The rows themselves name different templates or tokenizers: nothing agrees from the first token on."""
    if left.setup == right.setup:
        return []
    one, two = dict(left.setup), dict(right.setup)
    name = next(name for name in {**one, **two} if one.get(name) != two.get(name))
    return [
        Jump("tokenizer" if name == "tokenizer" else "template", 0, 0, f"field {name!r}", f"field {name!r}")
    ]


def _starts(text: str, at: int) -> list[int]:
    """How far before the offset a mark may have begun."""
    begin = max(0, at - _BACK)
    found = [text.rfind(sign, begin, at) for sign in ("<", "[", "#", "\n")]
    return [0, *sorted({at - position for position in found if position >= 0})]


def _short_alike(one: str, two: str) -> bool:
    cut, other_cut = re.split(r"[<\[#]", one)[0], re.split(r"[<\[#]", two)[0]
    return len(cut) >= 2 and cut == other_cut
