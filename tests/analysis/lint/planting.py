"""Generated logs: several services with long heads, and causes planted into them. No test itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from functools import cache
from typing import Any

from kvferry.analysis.lint import LintResult, lint, prompts_of
from kvferry.traces.chunk import Problems

__all__ = ["Row", "clean", "findings_of", "lines_of", "prose", "result_of", "tool"]

Row = dict[str, Any]

_WORDS = """
account agent answer balance carrier claim client contract customer delay delivery deposit document email
error escalate evidence export form guide handle invoice item language ledger limit manager notice number
offer order parcel partner payment period person phone policy price process product proof question reason
receipt record refund region reply report request return review route rule service shipment source state
status step summary supplier support system team term ticket tone transfer translate update user value
verify voucher warranty window wording
"""

_LIST = _WORDS.split()


@cache
def prose(seed: object, words: int) -> str:
    """Sentences of their own for every seed."""
    random_words, text = random.Random(str(seed)), []
    for at in range(words):
        word = random_words.choice(_LIST)
        text.append(word.capitalize() if at % 12 == 0 else word + ("." if at % 12 == 11 else ""))
    return " ".join(text)


def tool(name: str) -> Row:
    """A tool with a schema of its own."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": prose(name, 40),
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": prose(name + "q", 12)},
                    "limit": {"type": "integer", "minimum": 1},
                },
                "required": ["query"],
            },
        },
    }


def clean(services: int = 3, requests: int = 12, *, tools: int = 4, system_words: int = 400) -> list[Row]:
    """Requests of several services in turn: equal heads, questions of their own, some chats that grow."""
    rows: list[Row] = []
    for number in range(requests):
        for service in range(services):
            name = f"service-{'abcdefgh'[service]}"
            messages = [
                {"role": "system", "content": f"You are the {name}.\n{prose(name, system_words)}"},
                {"role": "user", "content": prose((name, number, "question"), 40)},
            ]
            rows.append(
                {
                    "service": name,
                    "model": "m",
                    "tools": [tool(f"{name[-1]}_{at}") for at in range(tools)],
                    "messages": messages,
                }
            )
            if number % 4 == 3:
                more = [
                    *messages,
                    {"role": "assistant", "content": prose((name, number, "answer"), 60)},
                    {"role": "user", "content": prose((name, number, "again"), 20)},
                ]
                rows.append({**rows[-1], "messages": more})
    # No two rows share an object: what is planted into one stays there.
    return [json.loads(json.dumps(row)) for row in rows]


def lines_of(rows: Iterable[Row | str]) -> list[bytes]:
    """As a log's lines; texts as they are."""
    return [
        (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)).encode() + b"\n"
        for row in rows
    ]


def result_of(
    rows: Iterable[Row | str], *, strict: bool = False, by: str | None = None, **more: Any
) -> LintResult:
    """Lint rows as a log."""
    problems = Problems(strict)
    prompts = prompts_of(lines_of(rows), problems, path="log.jsonl", by=by)
    return lint(prompts, path="log.jsonl", problems=problems, **more)


def findings_of(rows: Iterable[Row | str]) -> list[tuple[str, str]]:
    """(cause, place) of everything found."""
    return [(one.cause, one.place) for one in result_of(rows).findings]
