"""`kvferry trace analyze FOLDER --each`: every file by itself, in one process, in several, or on Ray.

Owns the folder's result: the files' own, and the hit ratios over all of them. Files share nothing here; a
folder that is one trace (the sessions of kv-cache-tester) is analysed whole without --each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..analysis.analyse import Question, analyse_counted
from ..analysis.fanout import fan_out
from ..analysis.hits import HitCount
from ..analysis.result import Analysis, Hits
from ..errors import UsageError
from ..traces import open_trace

__all__ = ["FolderAnalysis", "Reading", "analyse_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to open a file, as `traces.open_trace` takes it."""

    options: dict[str, Any]


class FolderAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a folder, each by itself."""

    path: str
    requests: int
    input_tokens: int
    output_tokens: int
    hit: Hits
    """Over all files; none shares a block with another."""
    files: tuple[Analysis, ...]


def analyse_folder(
    folder: str, reading: Reading, question: Question, *, workers: int, ray_address: str | None
) -> FolderAnalysis:
    """Analyse each file of `folder`, in the order of their names. Raises `UsageError` where there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{folder}: --each, --workers and --ray are for a folder of traces, one a file")
    files = sorted(str(file) for file in path.iterdir() if file.suffix in (".json", ".jsonl", ".csv"))
    if not files:
        raise UsageError(f"{folder}: has no .json, .jsonl or .csv file")
    jobs = [(file, reading, question) for file in files]
    found, total = [], HitCount()
    for analysis, hits in fan_out(_analyse_file, jobs, workers=workers, ray_address=ray_address):
        found.append(analysis)
        total = total.merged(hits)
    return FolderAnalysis(
        path=folder,
        requests=sum(one.requests for one in found),
        input_tokens=sum(one.input_tokens for one in found),
        output_tokens=sum(one.output_tokens for one in found),
        hit=total.ratios(),
        files=tuple(found),
    )


def _analyse_file(job: tuple[str, Reading, Question]) -> tuple[Analysis, HitCount]:
    file, reading, question = job
    return analyse_counted(open_trace(file, **reading.options), question)
