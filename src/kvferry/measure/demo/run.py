"""The demo from beginning to end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from ...engines.transformers.counting import token_counter
from ...engines.transformers.resolve import resolve_model
from ...runs.demo_summary import DemoSummary
from ...runs.directory import RunDirectory
from .losing import lose_pool
from .plan import Plan
from .policies import compare_policies
from .pools import open_demo_pool
from .replicas import Replica
from .sharing import fill, read_from_pool
from .stage import Narrator, Stage
from .summary import summarise
from .turning import find_turn
from .workload import Library

__all__ = ["SETTINGS", "run_demo", "start_replica"]

_POOL_BYTES = 6 << 30

SETTINGS: Mapping[str, str] = {
    # A demo has few requests: none is held out or spent on exploring, and a lost pool is tried again soon.
    "gate.holdout_share": "0",
    "gate.explore_share": "0",
    "timeouts.backoff_first": "200ms",
    "timeouts.backoff_most": "2s",
    "timeouts.load": "60s",
}


async def run_demo(
    *,
    plan: Plan,
    model: str,
    pool_url: str | None,
    run: RunDirectory,
    seed: int,
    cache_dir: Path,
    narrator: Narrator,
) -> DemoSummary:
    """Play all steps, write the run directory, and return the summary.

    Each replica leaves what it measured in the run directory when it ends: profile-A.json and profile-B.json.
    Raises KvferryError when a process does not start or dies. Processes are ended on every way out.
    """
    folder = await asyncio.to_thread(lambda: resolve_model(model, cache_dir, say=narrator.note))
    library = Library(seed, token_counter(folder))
    links = library.draw(2, plan.probe_tokens)
    prefixes = library.draw(plan.prefixes, plan.prefix_tokens)
    second = library.draw(plan.second_prefixes, plan.prefix_tokens)
    pool = await asyncio.to_thread(open_demo_pool, pool_url, _POOL_BYTES)
    a, b = (Replica(name, log=run.path / f"replica-{name}.log") for name in ("A", "B"))
    stage = Stage(
        plan=plan,
        pool=pool,
        a=a,
        b=b,
        prefixes=prefixes,
        second=second,
        links={"A": links[0], "B": links[1]},
        run=run,
        narrator=narrator,
        random=random.Random(seed),
    )
    try:
        narrator.step(1, f"{pool.what} and two replicas start", 0)
        await stage.both(*(start_replica(replica, stage.run, model, pool.url) for replica in stage.replicas))
        narrator.step(
            2, "cold prefill, local hits, and hits on B of what A published", _sharing_requests(plan)
        )
        await fill(stage)
        await read_from_pool(stage)
        narrator.step(3, "the link is throttled until the rule turns to recompute", 0)
        turns = await stage.both(find_turn(stage, a, list(second)), find_turn(stage, b, list(prefixes)))
        narrator.step(4, "unseen bandwidths and prompts: the gate against always and never", 0)
        comparisons = await compare_policies(stage, turns[-1].predicted)
        loss = None
        if pool_url is None or pool_url.startswith("files:"):
            narrator.step(5, f"{pool.what} is lost in the middle of a load, and comes back", 0)
            loss = await lose_pool(stage)
        # The profiles that replicas leave are of the link as it is, not as it was throttled last.
        await stage.both(*(stage.set_link(replica, None) for replica in stage.replicas))
        states = await stage.both(*(replica.state() for replica in stage.replicas))
        return summarise(
            model=model,
            plan=plan.name,
            asked=stage.asked,
            turns=turns,
            comparisons=comparisons,
            loss=loss,
            published_bytes=sum(state["state"]["published_bytes"] for state in states),
        )
    finally:
        await asyncio.gather(*(replica.stop() for replica in stage.replicas), return_exceptions=True)
        await asyncio.to_thread(pool.close)


async def start_replica(replica: Replica, run: RunDirectory, model: str, pool_url: str) -> None:
    """Start a replica of the demo, which is to leave its profile in the run directory."""
    await replica.start(
        model=model,
        local_cache_bytes=1 << 30,
        chunk_tokens=256,
        settings={
            **SETTINGS,
            "pool": pool_url,
            "profile": str(run.path.absolute() / f"profile-{replica.name}.json"),
        },
    )


def _sharing_requests(plan: Plan) -> int:
    return 4 + 3 * plan.prefixes + 2 * plan.second_prefixes + plan.pool_rounds * plan.prefixes
