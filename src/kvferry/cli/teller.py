"""Tells a person what the demo does while it does it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..report.decisions import DECISION_COLUMNS, decision_row
from ..units import counted

if TYPE_CHECKING:
    from ..measure.demo.replicas import Asked

__all__ = ["Teller"]

_WIDTHS = (9, 8, 10, 9, 9, 9, 13, 18, 9, 8)
_QUIET_ARM = "link"


class Teller:
    """Tells steps and decisions as lines, the same on a terminal and in a log; a terminal gets a bar too."""

    def __init__(self, out: TextIO, expected_requests: int) -> None:
        self._out = out
        self._began = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of about {task.total} requests"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            redirect_stdout=out.isatty(),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("starting", total=expected_requests)
        self.interesting = ""

    def __enter__(self) -> Teller:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, number: int, title: str, requests: int) -> None:
        count = f" ({counted(requests, 'request')})" if requests else ""
        self._bar.update(self._task, description=f"step {number}")
        self._say(f"\n[{self._clock()}] {number}. {title}{count}")
        if number > 1:
            self._say(self._cells(DECISION_COLUMNS) + "  first token")

    def asked(self, asked: Asked) -> None:
        record = asked.record
        self._bar.advance(self._task)
        if asked.arm == _QUIET_ARM:
            return
        if record.path == "pool_hit" or not self.interesting:
            self.interesting = asked.request_id
        self._say(f"{self._cells(decision_row(record))}  {asked.ttft_seconds:.2f} s")

    def note(self, text: str) -> None:
        self._say(f"    {text}")

    def _cells(self, cells: tuple[str, ...]) -> str:
        return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))

    def _clock(self) -> str:
        passed = int(time.monotonic() - self._began)
        return f"{passed // 60}:{passed % 60:02d}"

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)
