"""`kvferry handoff eval`: what a target still says with a map's KV, and whether to use it.

Owns the command's options and what it prints. The answer is "do not use" unless intervals clear thresholds
that were fixed before; `--require` makes thresholds of one's own, and exit status 1 where one is not met.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from ..errors import UsageError
from ..runs.retention_summary import ARMS, Figure, Interval, Refused, Retention
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..engines.transformers.capture import Captured
    from ..measure.retention.asking import Asked
    from ..runs.directory import RunDirectory

__all__ = ["evaluate"]

_NAMES = {
    "top1@1": "agreement with the target, first token",
    "top1@32": "agreement over 32 tokens",
    "top1@128": "agreement over 128 tokens",
    "beyond_top1": "agreement over 32, beyond the calibrated positions",
    "kl": "KL(target || mapped), nats a token",
    "nll_difference": "NLL above the target's, nats a token",
    "floor_retention": "kept of what the context is worth (NLL)",
    "gap_recovered": "gap from source to target recovered (NLL)",
    "accuracy": "answers right",
    "retention": "answers right, of the target's",
    "floor_retention_accuracy": "kept of what the context is worth (answers)",
    "gap_recovered_accuracy": "gap from source to target recovered (answers)",
    "slope_nll": "NLL more with each hand-off, nats a token",
}
"""In the order in which they are printed; what --require knows besides is in --json."""


def evaluate(
    source: str,
    target: str,
    *,
    map: Path,
    items: Path | None = None,
    tasks: str | None = None,
    limit: int | None = None,
    context_tokens: int = 192,
    hold_back: str = "1,16,64",
    seed: int = 0,
    fitted_on: Path | None = None,
    require: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    html: Path | None = None,
    record: Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
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
        Length of the bundled items' contexts, in the target's tokens.
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
    dtype
        What the models compute in.
    device
        cpu or cuda.
    threads
        Threads of a CPU; torch's own choice where not given.
    """
    from ..engines.transformers.capture import check_computing, open_captured
    from ..measure.retention.items import read_items
    from ..measure.retention.opening import check_map_file, open_map
    from ..measure.retention.records import record_of
    from ..measure.retention.requirements import parse_required
    from ..measure.retention.run import Wanted, measure_retention
    from ..measure.retention.tasks import TASKS

    required = tuple(parse_required(require))
    own = () if items is None else tuple(read_items(items)[:limit])
    named = _listed(tasks) if tasks is not None else (() if own else tuple(TASKS))
    if unknown := [name for name in named if name not in TASKS]:
        raise UsageError(f"--tasks: there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    if context_tokens < 32 or (limit is not None and limit < 1):
        raise UsageError("--context-tokens is at least 32, --limit at least 1")
    if not named and not own:
        raise UsageError(f"--tasks {tasks!r}: names none; there are {', '.join(TASKS)}, or give --items")
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"--seed {seed}: from 0 to {(1 << 32) - 1:,}")
    check_computing(dtype=dtype, device=device, threads=threads)
    _check_places(record, html)
    check_map_file(map)
    wanted = Wanted(
        tasks=named,
        user_items=own,
        items_file="" if items is None else items.name,
        limit=8 if limit is None else limit,
        context_tokens=context_tokens,
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

        _say(f"page: {write_retention_page(found, html)}")
    if json:
        write_json(msgspec.to_builtins(found))
    else:
        _print(found)
    return 0 if all(one.met for one in found.required) else 1


def _print(found: Retention) -> None:
    print(f"{found.source} to {found.target}, {found.map.name}, {found.map.file}")
    counts = ", ".join(f"{count} {task}" for task, count in found.items.items())
    print(f"{counts}; {found.documents} documents, the same in every arm")
    print()
    _print_arms(found)
    if found.accuracy:
        print()
        _print_answers(found)
    print()
    rows = [("the mapped arm", "", "95 % interval")]
    known = [name for name in _NAMES if isinstance(found.figures[name], Interval)]
    rows += [(_NAMES[name], *_shown(found.figures[name])) for name in known]
    write_columns(rows, right=(1,), indent="  ")
    for name in _NAMES:
        figure = found.figures[name]
        if isinstance(figure, Refused) and name != "beyond_top1":
            print(f"  no {name}: {figure.reason}")
    print()
    _print_hold_back(found)
    for note in found.notes:
        print(f"note: {note}")
    for one in found.required:
        value = "no figure" if isinstance(one.figure, Refused) else _end(one.figure, one.end)
        print(f"required {one.text}: {'met' if one.met else 'NOT met'} ({value})")
    print()
    print(f"verdict: {found.verdict.answer}")
    for reason in found.verdict.reasons:
        print(f"  {reason}")


def _print_arms(found: Retention) -> None:
    rows: list[tuple[str, ...]] = [
        ("arm", "NLL a character", "KL to target", "top-1 at 1", "at 32", "at 128")
    ]
    for name in ARMS:
        if found.arms[name].absent:
            continue
        rows.append(
            (
                name,
                _value(found.nll_per_character, name),
                _value(found.kl, name),
                *(_value(found.top1[horizon], name) for horizon in ("1", "32", "128")),
            )
        )
    if found.nll_per_character:
        write_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")
    for name, arm in found.arms.items():
        if arm.absent:
            print(f"  no arm {name}: {arm.absent}")


def _print_answers(found: Retention) -> None:
    tasks = list(found.accuracy)
    rows = [("answers right", *tasks)]
    rows += [
        (name, *(_value(found.accuracy[task], name) for task in tasks))
        for name in ARMS
        if any(name in found.accuracy[task] for task in tasks)
    ]
    write_columns(rows, right=tuple(range(1, len(tasks) + 1)), indent="  ")


def _print_hold_back(found: Retention) -> None:
    rows = [("tokens re-read", "top-1 at 32, mapped", "none", "NLL a token, mapped", "none")]
    rows += [
        (
            str(one.tokens),
            _value(one.top1, "mapped"),
            _value(one.top1, "none"),
            _value(one.nll_per_token, "mapped"),
            _value(one.nll_per_token, "none"),
        )
        for one in found.hold_back
        if one.top1
    ]
    if len(rows) > 1:
        write_columns(rows, right=(0, 1, 2, 3, 4), indent="  ")
        print()


def _value(figures: Mapping[str, Figure], name: str) -> str:
    figure = figures.get(name)
    return f"{figure.value:.3f}" if isinstance(figure, Interval) else ""


def _end(figure: Interval, end: str) -> str:
    return f"upper end {figure.high:.4f}" if end == "high" else f"lower end {figure.low:.4f}"


def _shown(figure: Figure) -> tuple[str, str]:
    if isinstance(figure, Refused):
        return "", figure.reason
    return f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f} (n = {figure.n})"


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


def _check_places(record: Path | None, html: Path | None) -> None:
    """That what is written at the end can be: nothing is measured for a folder that is in use."""
    if record is not None and (record / "run.json").exists():
        raise UsageError(f"--record {record}: already holds a run; choose another folder or remove it")
    if record is not None and record.exists() and not record.is_dir():
        raise UsageError(f"--record {record}: is a file; name a folder")
    if html is not None and html.is_dir():
        raise UsageError(f"--html {html}: is a folder; name a file in it, such as {html / 'page.html'}")


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
