"""`kvferry handoff demo`: both roles as processes of their own, over every transport and codec."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..config import cache_dir, load
from .output import Json, write_json

__all__ = ["demo"]


def demo(
    *,
    model: str = "smollm2-135m-instruct",
    prompt_tokens: int = 1024,
    run_dir: Path | None = None,
    seed: int = 1,
    quick: bool = False,
    json: Json = False,
) -> int:
    """A prefill node and a decode node, two processes: every transport and codec, and a link too slow for it.

    About two minutes on two cores. Exit status 1 when a check did not hold.

    Parameters
    ----------
    model
        A packaged model, a folder saved by transformers, or a hub id. Full attention in every layer.
    prompt_tokens
        Length of the prompts.
    run_dir
        Folder for the run; runs/handoff-TIME unless given.
    seed
        Draws the documents.
    quick
        Short prompts, and fewer of them.
    json
        Print summary.json to standard output at the end, and everything else to standard error.
    """
    from ..measure.handoff.demo import DemoPlan, run_demo
    from ..runs.directory import RunDirectory

    out = sys.stderr if json else sys.stdout
    loaded = load()
    folder = run_dir or Path("runs") / f"handoff-{datetime.now():%Y%m%d-%H%M%S}"
    plan = DemoPlan(prompt_tokens=min(prompt_tokens, 256) if quick else prompt_tokens, quick=quick)
    with RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"model": model, "dtype": "float32", "threads": 1, "prompt_tokens": plan.prompt_tokens},
    ) as run:
        summary = _interruptible(
            run_demo(
                plan=plan,
                model=model,
                run=run,
                seed=seed,
                cache_dir=cache_dir(),
                say=lambda text: print(text, file=out, flush=True),
            )
        )
        run.write_summary(msgspec.to_builtins(summary))
    print(f"\n{'=' * 100}", file=out)
    for text in summary.told():
        print(text, file=out)
    print(
        f"\nThe run is in {folder}: try  kvferry why {folder / 'decode-tcp'} {summary.interesting}", file=out
    )
    if json:
        write_json(summary)
    return 0 if all(summary.checks.values()) else 1


def _interruptible(work: Any) -> Any:
    """Run to the end; a request to terminate ends the demo's processes first, as an interrupt does."""

    async def run() -> Any:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
