"""`kvferry trace`: what requests were, and what they say.

Owns the flags of `analyze` and their checks, and lists the other commands: lint, record, convert, synthesize,
anonymize.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from ..analysis.analyse import ROOT, Question, analyse
from ..analysis.capacity import effective_capacity
from ..errors import FormatError, UsageError
from ..traces import open_trace
from ..traces.chunk import Format
from ..units import counted, parse_bytes, parse_seconds
from . import trace_files, trace_lint, trace_record
from .output import Json, OverwritePage, write_json
from .trace_folder import Reading, analyse_folder
from .trace_sizes import bytes_of, tokens_of, weight_of
from .trace_view import show, show_folder

__all__ = ["app"]

app = App(name="trace")

_CACHE = Group("Caches to compare", sort_key=1)
_READING = Group("Reading the file", sort_key=2)
_MANY = Group("A folder of files", sort_key=3)


@app.command
def analyze(
    file: str,
    *,
    bytes_per_token: Annotated[float | None, Parameter(group=_CACHE)] = None,
    model: Annotated[str | None, Parameter(group=_CACHE)] = None,
    kv_dtype: Annotated[str, Parameter(group=_CACHE)] = "auto",
    replicas: Annotated[int, Parameter(group=_CACHE)] = 1,
    capacity: Annotated[str | None, Parameter(group=_CACHE)] = None,
    capacity_tokens: Annotated[str | None, Parameter(group=_CACHE)] = None,
    active_decode: Annotated[str | None, Parameter(group=_CACHE)] = None,
    reserved: Annotated[str | None, Parameter(group=_CACHE)] = None,
    fragmentation: Annotated[str | None, Parameter(group=_CACHE)] = None,
    pool: Annotated[str | None, Parameter(group=_CACHE)] = None,
    pool_tokens: Annotated[str | None, Parameter(group=_CACHE)] = None,
    policies: Annotated[list[str] | None, Parameter(group=_CACHE)] = None,
    by: str = ROOT,
    root_blocks: int = 1,
    window: str = "15min",
    storage_nodes: int = 4,
    warm: str = "60s",
    sample: float = 0.1,
    seed: int = 0,
    block_tokens: Annotated[int | None, Parameter(group=_READING)] = None,
    format_: Annotated[Format | None, Parameter(name="--format", group=_READING)] = None,
    strict: Annotated[bool, Parameter(group=_READING)] = False,
    sort: Annotated[bool, Parameter(group=_READING)] = False,
    tokenizer: Annotated[str | None, Parameter(group=_READING)] = None,
    chat_template: Annotated[str | None, Parameter(group=_READING)] = None,
    each: Annotated[bool, Parameter(group=_MANY)] = False,
    workers: Annotated[int, Parameter(group=_MANY)] = 1,
    ray: Annotated[str | None, Parameter(group=_MANY)] = None,
    html: str | None = None,
    overwrite: OverwritePage = False,
    json: Json = False,
) -> int:
    """What a trace says: hits under every denominator, the curve, misses by cause, routing, flows, classes.

    Parameters
    ----------
    file
        A trace of any known format, recognised by its content; or a folder.
    bytes_per_token
        What a token's KV weighs; without it and --model there are no bytes and no flows.
    model
        A config.json, its folder, a GGUF file or the name of a preset: its KV weight, as kvferry size counts.
    kv_dtype
        With --model: auto, bf16, fp8 and others.
    replicas
        How many; more than one compares routings.
    capacity
        Of one replica's cache, such as 40GiB; without it nothing is ever evicted.
    capacity_tokens
        The same in tokens, such as 3M.
    active_decode
        Of that, what running requests hold.
    reserved
        Of that, what the engine keeps for itself.
    fragmentation
        Of that, what is lost in unfilled blocks.
    pool
        Of a shared pool; all replicas' together where not given.
    pool_tokens
        The same in tokens.
    policies
        Simulate lru, s3fifo, gdsf, belady (the bound) at the capacity and the pool's; may be given again.
    by
        What classes are: root (prompts that begin with the same block), or a field of the trace.
    root_blocks
        With --by root: how many blocks, where one system prompt is before everything.
    window
        Length of the worst window, in whole minutes.
    storage_nodes
        Nodes of the pool, for the picture of a lost one.
    warm
        In what time new replicas pull the hot set.
    sample
        Share of the blocks that the sampled curve sees.
    seed
        Of random routing.
    block_tokens
        Another size of block, where the file allows it.
    format_
        The file's format; else by its content.
    strict
        Stop at the first bad row; else such rows are counted and left out.
    sort
        Requests stand in any order: sort them, in memory.
    tokenizer
        For logs of prompts: a tokenizer.json or its folder.
    chat_template
        For logs of prompts: a template in jinja; else the one beside the tokenizer.
    each
        Every file of a folder by itself.
    workers
        Processes for that; results are the same.
    ray
        The address of a Ray cluster for that; --workers is how many it has.
    html
        Also write one self-contained page.
    """
    weight, name = weight_of(model, kv_dtype, bytes_per_token)
    physical = None if capacity is None else parse_bytes(capacity, "--capacity")
    taken = {
        "active_decode_bytes": bytes_of(active_decode, "--active-decode"),
        "reserved_bytes": bytes_of(reserved, "--reserved"),
        "fragmentation_bytes": bytes_of(fragmentation, "--fragmentation"),
    }
    if physical is None and any(taken.values()):
        raise UsageError(
            "--active-decode, --reserved, --fragmentation: they are taken off --capacity; give it"
        )
    effective = None if physical is None else effective_capacity(physical, **taken)
    if not 0.0 < sample <= 1.0:
        raise UsageError(f"--sample: {sample} is no share; write a number above 0, at most 1")
    question = Question(
        bytes_per_token=weight,
        model=name,
        replicas=replicas,
        capacity_tokens=tokens_of(
            None if effective is None else effective.effective_bytes, capacity_tokens, weight, "--capacity"
        ),
        capacity=effective,
        pool_tokens=tokens_of(
            None if pool is None else parse_bytes(pool, "--pool"), pool_tokens, weight, "--pool"
        ),
        class_field=by,
        root_blocks=_at_least_one(root_blocks, "--root-blocks"),
        window_seconds=_minutes(window),
        policies=tuple(policies or ()),
        sample_rate=sample,
        storage_nodes=_at_least_one(storage_nodes, "--storage-nodes"),
        warm_seconds=_positive_seconds(warm, "--warm"),
        seed=seed,
    )
    options = {
        "strict": strict,
        "block_tokens": block_tokens,
        "format": format_,
        "sort": sort,
        "tokenizer": tokenizer,
        "chat_template": chat_template,
    }
    if each or workers != 1 or ray is not None:
        if html is not None:
            raise UsageError("--html: is the page of one trace; leave --each, --workers and --ray away")
        folder = analyse_folder(file, Reading(options=options), question, workers=workers, ray_address=ray)
        if not folder.requests:
            raise FormatError(f"{file}: no row of its {counted(len(folder.files), 'file')} can be used")
        if json:
            write_json(folder)
        else:
            show_folder(folder)
        return 0
    if html is not None:
        from ..report.page import write_analysis_page
        from ..report.page.document import check_place
        from ..report.page.library import chart_library

        # What is missing is said before the work, not after it.
        chart_library()
        check_place(html, overwrite=overwrite)
    result = analyse(open_trace(file, **options), question)  # type: ignore[arg-type]
    if not result.requests:
        raise FormatError(result.recommendation)
    if html is not None:
        write_analysis_page(result, Path(html), overwrite=overwrite)
    if json:
        write_json(result)
    else:
        show(result)
        if html is not None:
            print(f"\n{html}")
    return 0


app.command(trace_lint.lint)
app.command(trace_record.record)
app.command(trace_files.convert)
app.command(trace_files.synthesize)
app.command(trace_files.anonymize)


def _minutes(text: str) -> float:
    seconds = parse_seconds(text, "--window")
    if seconds < 60 or seconds % 60:
        raise UsageError(f"--window: {text!r} is not whole minutes; write one such as 15min")
    return seconds


def _positive_seconds(text: str, flag: str) -> float:
    seconds = parse_seconds(text, flag)
    if not seconds > 0:
        raise UsageError(f"{flag}: {text!r} takes no time; write one such as 60s")
    return seconds


def _at_least_one(count: int, flag: str) -> int:
    if count < 1:
        raise UsageError(f"{flag}: {count}; write 1 or more")
    return count
