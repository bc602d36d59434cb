"""`kvferry demo`: the main job on this machine, told while it happens."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from cyclopts import App

from ..config import Config, cache_dir, load
from ..config.urls import hide_password
from ..errors import StoreError, TierUnavailable, UsageError
from ..runs.directory import RunDirectory
from ..store.open import open_tier
from .output import Json, write_json
from .teller import Teller

__all__ = ["app"]

T = TypeVar("T")

app = App(name="demo", help="Two replicas share a real KV cache, and only when it pays.")


@app.default
def demo(
    *,
    engine: Literal["transformers", "vllm"] = "transformers",
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
    engine
        What serves: our replicas over transformers, or two vLLM servers with kvferry as their connector.
    model
        A packaged model, a folder saved by transformers, or a hub id. Full attention in every layer.
    pool
        Share over this pool instead of an embedded Valkey: files:///DIR needs no server.
    run_dir
        Folder for the run; runs/demo-TIME unless given.
    seed
        Draws the documents and the unseen bandwidths.
    quick
        A short form, about three minutes: fewer and shorter prompts.
    json
        Print summary.json to standard output at the end, and everything else to standard error.
    """
    folder = run_dir or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    if engine == "vllm":
        if pool is not None:
            raise UsageError("--pool: the demo with vLLM kills its pool, and takes a Valkey of its own")
        return _demo_vllm(model, folder, seed=seed, quick=quick, json=json)
    from ..measure.demo.plan import FULL, QUICK
    from ..measure.demo.run import SETTINGS, run_demo
    from ..report.demo import render

    overrides = [f"{name}={value}" for name, value in SETTINGS.items()]
    if pool is not None:
        overrides.append(f"pool={pool}")
    loaded = load(overrides=overrides)
    if pool is not None:
        _ask(pool, loaded.config)
    plan = QUICK if quick else FULL
    out = sys.stderr if json else sys.stdout
    with RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"model": model, "dtype": "float32", "threads": 1, "plan": plan.name},
    ) as run:
        with Teller(out, plan.requests) as teller:
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


def _ask(pool: str, config: Config) -> None:
    """Ask the pool once: a demo over one that does not answer fails in every step, for minutes."""
    # A plug-in may mind being opened twice.
    if pool.startswith("plugin:"):
        return
    try:
        tier = open_tier(pool, setting="--pool")
        try:
            tier.usage(config.timeouts.connect)
        finally:
            tier.close()
    except StoreError as error:
        raise TierUnavailable(
            f"--pool {hide_password(pool)}: {error}; start it, or leave --pool away for an embedded one"
        ) from error


def _demo_vllm(model: str, folder: Path, *, seed: int, quick: bool, json: bool) -> int:
    from ..measure.vllm.plan import FULL, QUICK
    from ..measure.vllm.run import SETTINGS, run_vllm_demo
    from .demo_vllm import render

    loaded = load(json=SETTINGS)
    plan = QUICK if quick else FULL
    out = sys.stderr if json else sys.stdout
    with RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"engine": "vllm", "model": model, "dtype": "float32", "threads": 1, "plan": plan.name},
    ) as run:
        with Teller(out, plan.requests) as teller:
            summary = _run(
                run_vllm_demo(
                    plan=plan, model=model, run=run, seed=seed, cache_dir=cache_dir(), narrator=teller
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


def _run(demo: Coroutine[object, object, T]) -> T:
    """Run to the end; a request to terminate ends the demo's processes first, as an interrupt does."""

    async def main() -> T:
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
