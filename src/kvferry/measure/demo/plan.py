"""How much the demo does: the full form takes about five minutes on two cores, the quick form under two."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and lengths of one run."""

    name: str
    prefixes: int
    """Long shared prefixes of the first prompt set; replica A publishes them."""
    second_prefixes: int
    """Of the second prompt set; replica B publishes them."""
    prefix_tokens: int
    pool_rounds: int
    """How often B reads each of A's prefixes, its own prefix cache emptied in between."""
    answer_tokens: int
    step: float
    """Ratio of neighbouring bandwidths when the link is throttled."""
    link_probes: int
    """Short loads after each step, so that the estimators follow."""
    probe_tokens: int
    checks: int
    """Decisions by the rule at each step, on each replica."""
    bandwidths: int
    """Unseen bandwidths at which the policies are compared."""
    fallbacks: int
    """Requests on each replica while the pool is gone."""
    local_cache_blocks: int

    @property
    def requests(self) -> int:
        """About how many requests a run makes: the search for the turn ends when it has found it."""
        link = self.link_probes + self.checks
        fill = 4 + 3 * self.prefixes + 2 * self.second_prefixes + self.pool_rounds * self.prefixes
        turn = 2 * 9 * link
        policies = 2 * self.bandwidths * (self.link_probes + 3)
        loss = self.link_probes + 3 + 2 * self.fallbacks
        return fill + turn + policies + loss + 2 * self.link_probes


FULL = Plan(
    name="full",
    prefixes=10,
    second_prefixes=10,
    prefix_tokens=1_500,
    pool_rounds=2,
    answer_tokens=6,
    step=1.2,
    link_probes=5,
    probe_tokens=192,
    checks=1,
    bandwidths=3,
    fallbacks=4,
    local_cache_blocks=640,
)

QUICK = Plan(
    name="quick",
    prefixes=3,
    second_prefixes=3,
    prefix_tokens=512,
    pool_rounds=2,
    answer_tokens=4,
    step=1.25,
    link_probes=5,
    probe_tokens=128,
    checks=1,
    bandwidths=2,
    fallbacks=2,
    local_cache_blocks=256,
)
