"""`kvferry demo`: the main job on this machine, told while it happens."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App

from ..config import cache_dir, load
from ..report.decisions import DECISION_COLUMNS, decision_row
from ..runs.directory import RunDirectory
from .output import Json, write_json

if TYPE_CHECKING:
    from ..measure.demo.replicas import Asked
    from ..runs.demo_summary import DemoSummary

__all__ = ["app"]

app = App(name="demo", help="Two replicas share a real KV cache, and only when it pays.")

_WIDTHS = (9, 8, 10, 9, 9, 9, 13, 18, 9, 8)


@app.default
def demo(
    *,
    model: str = "smollm2-135m-instruct",
    pool: str | None = None,
    run_dir: Path | None = None,
    seed: int = 1,
    quick: bool = False,
    json: Json = False,
) -> int:
    """Two replicas share a real KV cache, and only when it pays: about five minutes on two cores.

    Exit status 1 when a check of the demo did not hold.

    Parameters
    ----------
    model
        A packaged model, a folder saved by transformers, or a hub id. Full attention in every layer.
    pool
        Share over this pool instead of an embedded Valkey: files:///DIR needs no server.
    run_dir
        Folder for the run; runs/demo-TIME unless given.
    seed
        Draws the documents and the unseen bandwidths.
    quick
        A short form: fewer and shorter prompts.
    json
        Print summary.json to standard output at the end, and everything else to standard error.
    """
    from ..measure.demo.plan import FULL, QUICK
    from ..measure.demo.run import SETTINGS, run_demo
    from ..report.demo import render

    overrides = [f"{name}={value}" for name, value in SETTINGS.items()]
    if pool is not None:
        overrides.append(f"pool={pool}")
    loaded = load(overrides=overrides)
    plan = QUICK if quick else FULL
    folder = run_dir or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    out = sys.stderr if json else sys.stdout
    with RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"model": model, "dtype": "float32", "threads": 1, "plan": plan.name},
    ) as run:
        teller = _Teller(out)
        summary = _run(
            run_demo(
                plan=plan,
                model=model,
                pool_url=pool,
                run=run,
                seed=seed,
                cache_dir=cache_dir(),
                narrator=teller,
            )
        )
        run.write_summary(msgspec.to_builtins(summary))
    print(f"\n{'=' * 100}", file=out)
    for line in render(summary):
        print(line, file=out)
    print(f"\nThe run is in {folder}: try  kvferry why {folder} {teller.interesting}", file=out)
    if json:
        write_json(summary)
    return 0 if all(summary.checks.values()) else 1


def _run(demo: Coroutine[Any, Any, DemoSummary]) -> DemoSummary:
    """Run to the end; a request to terminate ends the demo's processes first, as an interrupt does."""

    async def main() -> DemoSummary:
        task = asyncio.ensure_future(demo)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    except ExceptionGroup as group:
        # Two replicas work at the same time: one clear error is worth more than a group of them.
        raise next(iter(group.exceptions)) from group


class _Teller:
    """Tells steps and decisions as lines: the same on a terminal and in a log."""

    def __init__(self, out: object) -> None:
        self._out = out
        self._began = time.monotonic()
        self.interesting = ""

    def step(self, number: int, title: str, requests: int) -> None:
        count = f" ({requests} requests)" if requests else ""
        self._say(f"\n[{self._clock()}] {number}. {title}{count}")
        if number > 1:
            self._say(self._cells(DECISION_COLUMNS) + "  first token")

    def asked(self, asked: Asked) -> None:
        record = asked.record
        if asked.arm == "link":
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
        print(line, file=self._out, flush=True)  # type: ignore[call-overload]
