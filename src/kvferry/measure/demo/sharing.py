"""Steps 1 and 2: cold prefill, local hits, and hits on B of what A published.

A serves the first prompt set and B the second at the same time, each alone on its prompts: the first
request for a prefix is cold, the second is a local hit and publishes, the third is a local hit. Then B
reads A's prefixes from the pool, its own prefix cache emptied before each, so that every hit is the pool's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.demo_summary import LINK
from .replicas import Replica
from .stage import Stage
from .workload import Prefix, Question

__all__ = ["fill", "read_from_pool"]


async def fill(stage: Stage) -> None:
    """Cold prefills and local hits; what is asked for twice is published."""

    async def serve(replica: Replica, prefixes: Sequence[Prefix], rounds: int) -> None:
        link = stage.links[replica.name]
        for _ in range(2):
            await stage.ask(replica, Question(link, 0), LINK)
        for prefix in prefixes:
            for number in range(rounds):
                await stage.ask(replica, Question(prefix, number), "fill")

    await stage.both(serve(stage.a, stage.prefixes, 3), serve(stage.b, stage.second, 2))


async def read_from_pool(stage: Stage) -> None:
    """B serves questions about A's documents; A has published them, B has never seen them."""
    for round_number in range(stage.plan.pool_rounds):
        for prefix in stage.prefixes:
            await stage.ask(stage.b, Question(prefix, round_number), "pool", forget=True)
