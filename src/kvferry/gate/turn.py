"""The bandwidth at which a decision turns: the break-even of the full rule, found by asking the rule itself.

Unlike `cost.break_even`, which knows one overhead and one rate, this holds everything else of a request's
facts (setup, spread, queue, interference, margin, what is local) and varies one segment's rate alone.
"""

from __future__ import annotations

import msgspec

from .decide import decide
from .facts import Arm, Facts, GateTerms

__all__ = ["turning_rate"]

_SLOWEST, _FASTEST = 1.0, 1e15
_STEPS = 120


def turning_rate(facts: Facts, terms: GateTerms, *, segment: int = -1) -> float:
    """Bytes per second of `facts.segments[segment]` above which the rule loads, all else as it is.

    0.0 where it would load over any link, infinite where over none. ValueError without segments. The rate
    is one transfer's share: what `Segment.seconds_per_byte` stands for.
    """
    if not facts.segments:
        raise ValueError("nothing was found for this request: there is no link to vary")
    ruled = msgspec.structs.replace(terms, policy="rule")

    def loads(rate: float) -> bool:
        segments = list(facts.segments)
        varied_one = segments[segment]
        segments[segment] = msgspec.structs.replace(varied_one, seconds_per_byte=1.0 / rate, observations=1)
        varied = msgspec.structs.replace(facts, segments=tuple(segments), arm=Arm.ON, explore=False)
        return decide(varied, ruled).loads

    slow, fast = _SLOWEST, _FASTEST
    if loads(slow):
        return 0.0
    if not loads(fast):
        return float("inf")
    # The rule is monotone in the rate, so halving the interval (in logarithms) finds the one turn.
    for _ in range(_STEPS):
        middle = (slow * fast) ** 0.5
        if loads(middle):
            fast = middle
        else:
            slow = middle
    return fast
