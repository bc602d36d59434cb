"""`kvferry trace lint`: why prompts that look alike do not match, and what a change of prompts loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from ..analysis.lint import (
    Counting,
    Finding,
    Lint,
    LintResult,
    Prompt,
    Render,
    by_bytes,
    by_tokenizer,
    fields_of,
    prompts_of,
)
from ..analysis.lint.baseline import BaselineResult, compare
from ..analysis.lint.mending import where
from ..errors import FormatError, UsageError
from ..traces.chunk import Problems
from ..traces.openai import Tokens
from ..traces.openai.records import request_of
from ..units import counted
from .output import Json, write_columns, write_json

__all__ = ["lint"]

_LOOKED_AT = 100
_NEUTRAL = "neutral form: system messages, tools, then turns (give --chat-template for the engine's own)"


def lint(
    file: Path,
    *,
    by: str | None = None,
    tokenizer: Path | None = None,
    chat_template: Path | None = None,
    block_tokens: int = 16,
    baseline: Path | None = None,
    fail_over: float | None = None,
    top: int = 10,
    show_text: Annotated[bool, Parameter(show_default=False)] = False,
    strict: Annotated[bool, Parameter(show_default=False)] = False,
    json: Json = False,
) -> int:
    """Why prompts that look alike do not match: causes, what each costs, how to mend it.

    FILE is a log of requests, one JSON object a line, with messages (and tools) or a prompt. Prompts that are
    meant to be alike are compared, past every difference that has a cause, to what they could share. Content
    of prompts is never printed unless asked for.

    Parameters
    ----------
    file
        The log. Unknown fields are fine; rows that cannot be used are counted and shown.
    by
        Field that names a row's service, such as service or metadata.team.
    tokenizer
        A tokenizer.json or its folder, for exact counts; without it tokens are bytes / 4.
    chat_template
        A chat template (jinja, or tokenizer_config.json); that beside the tokenizer where not given.
    block_tokens
        Tokens of a block: only whole blocks are shared.
    baseline
        A log made before a change of prompts, to compare with.
    fail_over
        With --baseline: status 1 if a service loses more cached tokens per request than that.
    top
        Findings to print.
    show_text
        Print what differs, not only its shape.
    strict
        Stop at the first row that cannot be used.
    """
    if fail_over is not None and baseline is None:
        raise UsageError("--fail-over compares with an older log: say --baseline OLD.jsonl")
    if fail_over is not None and not 0 <= fail_over < float("inf"):
        raise UsageError(f"--fail-over: {fail_over} is not a number of tokens; write one such as 500")
    if block_tokens < 1:
        raise UsageError(f"--block-tokens: {block_tokens}; a block has at least one token")
    counting, render, rendering = _reading(tokenizer, chat_template)
    problems = Problems(strict)
    prompts = _prompts(file, problems, by, render)
    change: BaselineResult | None = None
    if baseline is not None:
        old_problems = Problems(strict)
        old = _prompts(baseline, old_problems, by, render)
        change, running = compare(
            old,
            prompts,
            old_path=str(baseline),
            old_problems=old_problems,
            fail_over=fail_over,
            block_tokens=block_tokens,
            counting=counting,
            show_text=show_text,
        )
    else:
        running = Lint(block_tokens=block_tokens, counting=counting, show_text=show_text)
        for prompt in prompts:
            running.add(prompt)
    result = running.result(path=str(file), problems=problems, rendering=rendering)
    if json:
        document: dict[str, Any] = msgspec.to_builtins(result)
        write_json({**document, "baseline": None if change is None else msgspec.to_builtins(change)})
    else:
        _print(result, top)
        if change is not None:
            _print_change(change)
    return 1 if change is not None and change.failed else 0


def _reading(tokenizer: Path | None, chat_template: Path | None) -> tuple[Counting, Render | None, str]:
    """How to count, how to render, and the words for the latter."""
    if tokenizer is None:
        if chat_template is not None:
            raise UsageError("--chat-template comes with its tokenizer: say --tokenizer FOLDER too")
        return by_bytes(), None, _NEUTRAL
    tokens = Tokens.load(tokenizer, chat_template)

    def encode(text: str, chat: bool) -> list[int]:
        return tokens.ids([text], chats=[chat])[0]

    counting = by_tokenizer(encode, f"exact: {tokenizer}")
    template = tokens.template
    if template is None:
        return counting, None, _NEUTRAL

    def render(messages: list[dict[str, Any]], tools: list[Any] | None, row: Mapping[str, Any]) -> str:
        request = request_of(row, 0)
        return template.render(
            messages, tools, arrival=request.arrival or 0.0, arguments=request.template_arguments
        )

    return counting, render, "the chat template's"


def _prompts(path: Path, problems: Problems, by: str | None, render: Render | None) -> Iterator[Prompt]:
    """The log's prompts; an error if it has none, or if `by` is the field of none."""
    found = named = 0
    try:
        with path.open("rb") as lines:
            for prompt in prompts_of(lines, problems, path=str(path), by=by, render=render):
                found += 1
                named += prompt.service is not None
                yield prompt
        if by is not None and found and not named:
            with path.open("rb") as lines:
                known = ", ".join(fields_of(islice(lines, _LOOKED_AT))) or "none"
            raise UsageError(
                f"--by {by}: no row of {path} has this field as a text or a whole number; its first rows "
                f"have {known}; leave --by away to sort prompts by service, or by likeness"
            )
    except OSError as error:
        raise FormatError(f"{path}: cannot read this file: {error.strerror}") from error
    if not found:
        reason = f": {problems.first[0]}" if problems.first else "; it is empty"
        raise FormatError(f"{path}: no row has messages or a prompt{reason}")


def _print(result: LintResult, top: int) -> None:
    share = 100 * result.cached_tokens / result.input_tokens if result.input_tokens else 0.0
    print(
        f"{counted(result.requests, 'request')}, {counted(result.input_tokens, 'token')}, of which a cache "
        "without end holds "
        f"{result.cached_tokens:,} ({share:.1f} %) in blocks of {result.block_tokens}"
    )
    print(f"  tokens: {result.counting}")
    print(f"  text: {result.rendering}")
    for note in result.notes:
        print(f"  {note}")
    for problem in result.problems:
        print(f"    {problem}")
    print()
    if result.findings:
        rows = [("cause", "place", "service", "lost in", "lost tokens", "with later", "held apart")]
        rows += [
            (
                one.cause,
                where(one.place, one.line_in_place),
                _names(one),
                f"{one.requests:,}",
                f"{one.lost_tokens:,}",
                f"{one.blocked_tokens:,}",
                f"{one.apart_tokens:,}",
            )
            for one in result.findings[:top]
        ]
        write_columns(rows, right=(3, 4, 5, 6))
        if len(result.findings) > top:
            print(f"and {len(result.findings) - top} more: --top {len(result.findings)}")
        print()
        for number, one in enumerate(result.findings[:top], 1):
            _print_finding(number, one)
        print()
    print(result.recommendation)


def _print_finding(number: int, finding: Finding) -> None:
    example = finding.example
    place = "" if finding.place == "tools" else f" at {where(finding.place, finding.line_in_place)}"
    print(f"{number}. {finding.what}{place} ({_names(finding)})")
    print(f"   lines {example.earlier_line} and {example.line}: {example.before} / {example.after}")
    lost = f"lost in {counted(finding.requests, 'request')}"
    if finding.services:
        named = ", ".join(f"{name} ({count:,})" for name, count in list(finding.services.items())[:5])
        lost += f", present in: {named}"
    print(f"   {lost}")
    print(f"   {finding.mend}")


def _names(finding: Finding) -> str:
    """The services that have it; the family where rows name none."""
    names = list(finding.services)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or finding.family


def _print_change(change: BaselineResult) -> None:
    print()
    rows = [("service", "cached before", "cached now", "lost", "at risk", "once")]
    rows += [
        (
            one.name,
            f"{one.old_cached_per_request:,.0f}",
            f"{one.new_cached_per_request:,.0f}",
            f"{one.lost_per_request:,.0f}",
            f"{one.at_risk_per_request:,.0f}",
            f"{one.once_per_request:,.0f}",
        )
        for one in change.services
    ]
    print(f"against {change.path}, tokens per request:")
    write_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")
    for name in change.unmatched:
        print(f"  not compared: {name}")
    if change.bad_rows:
        print(f"  {counted(change.bad_rows, 'row')} of {change.path} could not be used")
    print(f"{'FAILED: ' if change.failed else ''}{change.sentence}")
