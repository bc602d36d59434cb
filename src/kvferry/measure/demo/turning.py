"""Step 4: predict the bandwidth at which the rule turns to recompute, then find it by throttling the link.

The prediction is made from the facts of one decision well above the turn, before anything near the turn
has been tried. Then the link is throttled in steps of at most 1.25x, with a few short loads after each so
that the estimators follow, and at each step the rule decides real requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...gate.turn import turning_rate
from .replicas import Asked, Replica
from .stage import Stage
from .workload import Prefix, Question

__all__ = ["Turn", "find_turn"]

_ABOVE = 2.0
"""The prediction is made at about so many times the expected turn."""
_STEPS_ABOVE = 2
_MOST_STEPS = 10
_STEPS_BELOW = 2
"""How far to go on after the first decline, to see that it was no accident."""


@dataclass(slots=True)
class Turn:
    """What was predicted and what was seen, in bytes per second."""

    replica: str
    step: float
    predicted: float
    accepted_at: float | None = None
    """The lowest bandwidth at which the rule still loaded."""
    declined_at: float | None = None
    """The highest at which it did not."""
    tried: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def within_a_step(self) -> bool:
        """Whether the observed turn lies at most a step from the prediction."""
        if self.accepted_at is None or self.declined_at is None:
            return False
        return self.declined_at / self.step <= self.predicted <= self.accepted_at * self.step


async def find_turn(stage: Stage, replica: Replica, prefixes: list[Prefix]) -> Turn:
    """Predict and observe the turn on one replica, with prefixes that are in the pool."""
    plan = stage.plan
    taken = 0

    async def check() -> Asked:
        nonlocal taken
        prefix = prefixes[taken % len(prefixes)]
        taken += 1
        return await stage.ask(replica, Question(prefix, 0), "turn", forget=True)

    # Unthrottled, to learn about where to look; then once above the turn, to predict from.
    await stage.set_link(replica, None)
    first = await check()
    rough = _turning_rate(first)
    await stage.set_link(replica, rough * _ABOVE)
    turn = Turn(replica.name, plan.step, _turning_rate(await check()))
    rate = turn.predicted * plan.step ** (_STEPS_ABOVE + 0.5)
    below = 0
    for _ in range(_MOST_STEPS):
        await stage.set_link(replica, rate)
        for _ in range(plan.checks):
            loads = _loads(await check())
            turn.tried.append((rate, loads))
            if loads:
                turn.accepted_at = rate if turn.accepted_at is None else min(turn.accepted_at, rate)
            else:
                turn.declined_at = rate if turn.declined_at is None else max(turn.declined_at, rate)
        below += turn.declined_at is not None
        if below > _STEPS_BELOW:
            break
        rate /= plan.step
    await replica.switch(bytes_per_second=None)
    return turn


def _turning_rate(asked: Asked) -> float:
    record = asked.record
    if record.facts is None:
        raise RuntimeError(f"{asked.request_id} was decided without facts")
    return turning_rate(record.facts, record.terms)


def _loads(asked: Asked) -> bool:
    return asked.record.decision is not None and asked.record.decision.loads
