"""The commands of `kvferry trace` that write a trace file from a whole one: convert, synthesize, anonymize.

Owns their flags and what every command says of a file that it wrote; `trace.py` registers them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from ..errors import UsageError
from ..traces import Problems, Trace, open_trace
from ..traces.chunk import Format
from ..traces.convert import Written, new_secret, read_secret, write_mooncake, write_own
from ..traces.convert import anonymize as write_anonymous
from ..units import counted, parse_seconds
from .output import Json, write_json

__all__ = [
    "ChatTemplate",
    "FormatName",
    "Overwrite",
    "SecretFile",
    "Strict",
    "Tokenizer",
    "anonymize",
    "complain",
    "convert",
    "done",
    "synthesize",
]

Overwrite = Annotated[bool, Parameter(help="Replace OUT where it exists.")]
Strict = Annotated[bool, Parameter(help="Stop at the first bad row; else bad rows are counted.")]
SecretFile = Annotated[
    str | None,
    Parameter(
        help="A file of at least 16 random bytes; files under one secret can be joined. "
        "Without it a secret is made and forgotten."
    ),
]
FormatName = Annotated[
    Format | None, Parameter(name="--format", help="The format of FILE; else by its content.")
]
BlockTokens = Annotated[int | None, Parameter(help="Tokens of a block; a multiple of what FILE has.")]
Tokenizer = Annotated[str | None, Parameter(help="For logs of prompts: a tokenizer.json or its folder.")]
ChatTemplate = Annotated[
    str | None, Parameter(help="A chat template in jinja; else the one beside the tokenizer.")
]


def convert(
    file: str,
    out: str,
    *,
    to: Literal["kvferry", "mooncake"] = "kvferry",
    sort: bool = False,
    format_: FormatName = None,
    block_tokens: BlockTokens = None,
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    overwrite: Overwrite = False,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Write a trace of any format in kvferry's own, or in Mooncake's.

    Keyed hashes go along; ids of one file, and hashes of prompts, become numbers.

    Parameters
    ----------
    file
        A trace, or a folder of them.
    out
        A new file.
    to
        The format of OUT. mooncake keeps whole milliseconds, lengths and ids, and no fields.
    sort
        Put requests in order of arrival, however far apart they stand: all of them are held in memory.
    """
    trace = open_trace(
        file,
        strict=strict,
        block_tokens=block_tokens,
        format=format_,
        sort=sort,
        tokenizer=tokenizer,
        chat_template=chat_template,
    )
    _not_itself(file, out)
    write = write_own if to == "kvferry" else write_mooncake
    return done(write(trace, Path(out), overwrite=overwrite), trace, json)


def synthesize(
    out: str,
    *,
    preset: Literal["chat", "documents", "agents", "mixed"] | None = None,
    recipe: str | None = None,
    seed: int | None = None,
    requests: int | None = None,
    seconds: str | None = None,
    accesses: int | None = None,
    rate: float | None = None,
    burstiness: float | None = None,
    block_tokens: int | None = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> int:
    """Make a trace up: classes with prefix pools, skew, bursts, growing chats, agents with tools.

    The same recipe and seed give the same file, byte for byte. It holds its recipe.

    Parameters
    ----------
    out
        A new file.
    preset
        Ready-made classes; mixed unless --recipe gives others. No measured traffic stands behind them.
    recipe
        A JSON file with a recipe of your own; the flags below replace its values.
    seed
        Of all randomness; 0 unless given.
    requests
        End after so many; 10,000 where nothing else ends the trace.
    seconds
        End after this long, such as 1h.
    accesses
        End after so many block references.
    rate
        Sessions a second.
    burstiness
        Coefficient of variation of the times between sessions: 1 is Poisson, more is bursts.
    block_tokens
        Tokens of a block.
    """
    from ..traces.synthesis import PRESETS, read_recipe
    from ..traces.synthesis import Recipe as SynthesisRecipe
    from ..traces.synthesis import synthesize as make

    if preset is not None and recipe is not None:
        raise UsageError("--preset and --recipe: give one of them")
    given = {
        "seed": seed,
        "requests": requests,
        "seconds": None if seconds is None else parse_seconds(seconds, "--seconds"),
        "accesses": accesses,
        "sessions_per_second": rate,
        "burstiness": burstiness,
        "block_tokens": block_tokens,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if recipe is not None:
        base = msgspec.to_builtins(read_recipe(Path(recipe)))
        made = msgspec.convert({**base, **changes}, SynthesisRecipe)
    else:
        if not changes.keys() & {"requests", "seconds", "accesses"}:
            changes["requests"] = 10_000
        made = SynthesisRecipe(classes=PRESETS[preset or "mixed"], **changes)  # type: ignore[arg-type]
    trace = make(made)
    written = write_own(trace, Path(out), recipe=msgspec.to_builtins(made), overwrite=overwrite)
    return done(written, trace, json)


def anonymize(
    file: str,
    out: str,
    *,
    keep: list[str] | None = None,
    secret_file: SecretFile = None,
    sort: bool = False,
    format_: FormatName = None,
    block_tokens: BlockTokens = None,
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    overwrite: Overwrite = False,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Write a trace that may be shown: keyed hashes under a new secret, lengths and arrivals as they were.

    All fields (class, session, model, ...) are dropped unless named; a kept one is written as it is.

    Parameters
    ----------
    file
        A trace of any format, or a folder of them.
    out
        A new file.
    keep
        A field to keep, such as class; may be given again.
    sort
        Put requests in order of arrival, however far apart they stand: all of them are held in memory.
    """
    secret = new_secret() if secret_file is None else read_secret(Path(secret_file))
    trace = open_trace(
        file,
        strict=strict,
        block_tokens=block_tokens,
        format=format_,
        sort=sort,
        tokenizer=tokenizer,
        chat_template=chat_template,
    )
    _not_itself(file, out)
    written = write_anonymous(trace, Path(out), secret, keep=keep or (), overwrite=overwrite)
    return done(written, trace, json)


def done(written: Written, trace: Trace, json: bool) -> int:
    """Say what was written and what was left out."""
    complain(trace.problems)
    for caveat in trace.caveats:
        print(f"kvferry: {caveat}", file=sys.stderr)
    if json:
        write_json(written)
        return 0
    blocks = ""
    if trace.has_blocks:
        blocks = (
            f", {counted(written.block_references, 'block')} of {counted(trace.block_tokens, 'token')} asked "
            f"for, {written.unique_blocks:,} different"
        )
    print(
        f"{written.path}: {counted(written.requests, 'request')}, "
        f"{counted(written.input_tokens, 'input token')}{blocks}"
    )
    return 0


def complain(problems: Problems) -> None:
    """Say which rows were left out, on standard error."""
    for problem in problems.first:
        print(f"kvferry: bad row: {problem}", file=sys.stderr)
    if problems.count:
        left = "was" if problems.count == 1 else "were"
        print(f"kvferry: {counted(problems.count, 'bad row')} {left} left out", file=sys.stderr)


def _not_itself(file: str, out: str) -> None:
    if Path(out).exists() and Path(file).exists() and Path(out).samefile(file):
        raise UsageError(f"{out}: this is the trace that is read; name another file")
