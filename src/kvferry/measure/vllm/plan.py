"""How much the demo with vLLM does: the full form takes about five minutes on two cores, the quick one three.

Every step is played on both servers at once, so that all paths are timed under the same load.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "VllmPlan"]


@dataclass(frozen=True, slots=True)
class VllmPlan:
    """Counts and lengths of one run; all counts are for each of the two servers."""

    name: str
    prefixes: int
    """Long prefixes that it computes and publishes, and the other one loads."""
    prefix_tokens: int
    local_rounds: int
    """Further requests for each prefix, which its own prefix cache answers."""
    pool_rounds: int
    """How often it reads each of the other's prefixes, its own prefix cache emptied in between."""
    handed: int
    """Prefills that it makes for the other one, which decodes."""
    told: int
    """Requests that forbid the load; each costs a whole prefill."""
    broken: int
    """Loads that meet a block of garbage half-way."""
    killed: int
    """Requests after the pool's server was killed."""
    answer_tokens: int

    @property
    def requests(self) -> int:
        """How many requests a run makes."""
        each = self.prefixes * (1 + self.local_rounds + self.pool_rounds)
        # A hand-off is two requests, and a third shows that the answer is the same.
        return 2 * (each + 3 * self.handed + self.told + self.broken + self.killed)


FULL = VllmPlan(
    name="full",
    prefixes=5,
    prefix_tokens=2_800,
    local_rounds=2,
    pool_rounds=2,
    handed=2,
    told=3,
    broken=3,
    killed=2,
    answer_tokens=16,
)

QUICK = VllmPlan(
    name="quick",
    prefixes=1,
    prefix_tokens=2_800,
    local_rounds=2,
    pool_rounds=4,
    handed=1,
    told=1,
    broken=1,
    killed=1,
    answer_tokens=16,
)
