"""`kvferry handoff eval`: what a target still says with a map's KV, and whether to use it.

Owns the command's options and its exit status. The answer is "do not use" unless intervals clear thresholds
that were fixed before; `--require` makes thresholds of one's own, and exit status 1 where one is not met.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from ..errors import UsageError
from .handoff_eval_tables import eval_tables
from .handoff_options import Device, Dtype, Threads
from .output import Json, OverwritePage, write_json

if TYPE_CHECKING:
    from ..engines.transformers.capture import Captured
    from ..measure.retention.asking import Asked
    from ..runs.directory import RunDirectory

__all__ = ["evaluate"]


def evaluate(
    source: str,
    target: str,
    *,
    map: Path,
    items: Path | None = None,
    tasks: str | None = None,
    limit: int | None = None,
    context_tokens: int | None = None,
    longer_tokens: int | None = None,
    hold_back: str = "1,16,64",
    seed: int = 0,
    fitted_on: Path | None = None,
    require: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    html: Path | None = None,
    overwrite: OverwritePage = False,
    record: Path | None = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Measure what TARGET still says with SOURCE's KV through a map, beside its own KV and beside controls.

    Every arm reads the same items. Figures have 95 % intervals, resampled by document. The verdict is
    "do not use" unless they clear thresholds that were fixed beforehand. Exit status 1 where a --require is
    not met.

    Parameters
    ----------
    source
        The model that the map was fitted from: a packaged model, a folder saved by transformers or a hub id.
    target
        The model that it was fitted for.
    map
        A file of kvferry handoff fit or kvferry handoff train.
    items
        Your own items, JSON lines: {"document": "id", "context": "...", "continuation": "..."} or
        {"context": "...", "question": "...", "choices": ["...", "..."], "answer": 0}.
    tasks
        Bundled tasks, such as needle,recall,cloze,code; all of them where no --items are given.
    limit
        Items of each bundled task and conversations, 8 where not given; and the most of yours.
    context_tokens
        Length of the bundled items' contexts, in the target's tokens: 192 where not given, or a little less
        than the map was calibrated on where that is less.
    longer_tokens
        Length of as many bundled items more, which are longer than what the map was calibrated on and judged
        apart; not given: there are none.
    hold_back
        How many of the context's last tokens the receiver re-reads itself.
    seed
        Of items, resampling and the random map.
    fitted_on
        The folder that the map was fitted on: its training and validation documents are left out.
    require
        NAME>=NUMBER or NAME<=NUMBER, such as top1>=0.9. Can be repeated.
    html
        Write a page with the curves, which needs no network.
    record
        Write a run directory: settings and versions, every arm of every item, the figures.
    """
    from ..engines.transformers.capture import check_computing, open_captured
    from ..measure.retention.gathering import Wanted
    from ..measure.retention.items import read_items
    from ..measure.retention.opening import check_map_file, open_map
    from ..measure.retention.records import record_of
    from ..measure.retention.requirements import parse_required
    from ..measure.retention.run import measure_retention
    from ..measure.retention.tasks import TASKS

    required = tuple(parse_required(require))
    own = () if items is None else tuple(read_items(items)[:limit])
    named = _listed(tasks) if tasks is not None else (() if own else tuple(TASKS))
    if unknown := [name for name in named if name not in TASKS]:
        raise UsageError(f"--tasks: there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    for option, given, least in (
        ("--context-tokens", context_tokens, 32),
        ("--longer-tokens", longer_tokens, 32),
        ("--limit", limit, 1),
    ):
        if given is not None and given < least:
            raise UsageError(f"{option} is at least {least}, not {given}")
    if not named and not own:
        raise UsageError(f"--tasks {tasks!r}: names none; there are {', '.join(TASKS)}, or give --items")
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"--seed {seed}: from 0 to {(1 << 32) - 1:,}")
    check_computing(dtype=dtype, device=device, threads=threads)
    _check_places(record, html, overwrite)
    check_map_file(map)
    wanted = Wanted(
        tasks=named,
        user_items=own,
        items_file="" if items is None else items.name,
        limit=8 if limit is None else limit,
        context_tokens=context_tokens,
        longer_tokens=longer_tokens,
        hold_back=_counts("--hold-back", hold_back),
        seed=seed,
        without=frozenset() if fitted_on is None else _fitted(fitted_on),
        required=required,
    )
    ours, theirs = (
        open_captured(_folder(name), name=_name(name), dtype=dtype, device=device, threads=threads)
        for name in (source, target)
    )
    opened = open_map(map, ours.kv, theirs.kv, dtype=theirs.dtype, device=device)
    with contextlib.ExitStack() as stack:
        run = None if record is None else stack.enter_context(_recorded(record, seed, ours, theirs, dtype))
        numbers = itertools.count(1)

        def keep(asked: Asked) -> None:
            if run is not None:
                run.append_request(record_of(asked, next(numbers)))

        found = measure_retention(ours, theirs, opened, wanted, map_file=map.name, say=_say, keep=keep)
        if run is not None:
            run.write_summary(msgspec.to_builtins(found))
    if html is not None:
        from ..report.retention import write_retention_page

        _say(f"page: {write_retention_page(found, html, overwrite=overwrite)}")
    if json:
        write_json(msgspec.to_builtins(found))
    else:
        eval_tables(found)
    return 0 if all(one.met for one in found.required) else 1


def _recorded(folder: Path, seed: int, source: Captured, target: Captured, dtype: str) -> RunDirectory:
    from ..config import load
    from ..runs.directory import RunDirectory

    loaded = load()
    return RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"source": source.kv.name, "target": target.kv.name, "dtype": dtype},
    )


def _check_places(record: Path | None, html: Path | None, overwrite: bool) -> None:
    """That what is written at the end can be: nothing is measured for a folder that is in use."""
    if record is not None and (record / "run.json").exists():
        raise UsageError(f"--record {record}: already holds a run; choose another folder or remove it")
    if record is not None and record.exists() and not record.is_dir():
        raise UsageError(f"--record {record}: is a file; name a folder")
    if html is not None:
        from ..report.page.document import check_place

        check_place(html, overwrite=overwrite)


def _fitted(folder: Path) -> frozenset[str]:
    """Digests of what a fit on this folder would have learned from or chosen by."""
    from ..handoff.mapping.texts import read_documents, split_documents
    from ..measure.retention.tasks.library import digest_of

    parts = split_documents(read_documents(folder, option="--fitted-on"))
    return frozenset(digest_of(one.text) for name in ("train", "validation") for one in parts[name])


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _counts(option: str, text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(part) for part in _listed(text)})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UsageError(f"{option} {text!r}: write numbers of tokens, 1 at least, such as 1,16,64")
    return tuple(found)


def _folder(name: str) -> Path:
    from ..config import cache_dir
    from ..engines.transformers.resolve import resolve_model

    return resolve_model(name, cache_dir(), say=_say)


def _name(name: str) -> str:
    from ..engines.transformers.resolve import model_name

    return model_name(name)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
