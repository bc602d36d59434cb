"""Step 6: the rule against always loading and never loading, at bandwidths and prompts it has not seen.

Bandwidths are drawn from the run's seed around the predicted turn, prompts are the second set, nothing is
tuned in between. The three policies take turns in a rotated order, each from an empty local cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .replicas import Asked, Replica
from .stage import Stage
from .workload import Question

__all__ = ["POLICIES", "Comparison", "compare_policies"]

POLICIES = ("rule", "always", "never")
_LOWEST, _HIGHEST = 0.4, 2.5
"""Of the predicted turn: both sides are visited, and close calls are likely."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt at one bandwidth under the three policies."""

    bytes_per_second: float
    by_policy: dict[str, Asked]


async def compare_policies(stage: Stage, turn_bytes_per_second: float) -> list[Comparison]:
    """Every bandwidth on both replicas, at the same time, each with a prompt of its own."""
    rates = [
        turn_bytes_per_second * math.exp(stage.random.uniform(math.log(_LOWEST), math.log(_HIGHEST)))
        for _ in range(stage.plan.bandwidths)
    ]

    async def on(replica: Replica, offset: int) -> list[Comparison]:
        found = []
        for number, rate in enumerate(rates):
            await stage.set_link(replica, rate)
            prefix = stage.second[(offset + number) % len(stage.second)]
            by_policy = {}
            for turn in range(len(POLICIES)):
                policy = POLICIES[(turn + number + offset) % len(POLICIES)]
                await replica.switch(policy=policy)
                by_policy[policy] = await stage.ask(
                    replica, Question(prefix, 0), f"policy {policy}", forget=True
                )
            await replica.switch(policy="rule")
            found.append(Comparison(rate, by_policy))
        await replica.switch(bytes_per_second=None)
        return found

    on_a, on_b = await stage.both(on(stage.a, 0), on(stage.b, stage.plan.bandwidths))
    return [*on_a, *on_b]
