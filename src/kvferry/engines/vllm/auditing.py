"""Which blocks are compared with the pool's, and what follows: the scheduler's side of `audit`.

A replica that has computed nothing yet computes its first prompt, to learn what it takes; so the first
comparison comes before any block of a pool is used. Later ones are a share of the requests that compute, for
other reasons, what a tier holds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ...gate.arms import uniform
from .kept import Kept
from .ordering import Tracked
from .orders import AuditDone, Run
from .spaces import EngineSpaces

__all__ = ["Audits"]

log = logging.getLogger(__name__)

_SHARE = 0.02
_SECONDS = 5.0


@dataclass(slots=True)
class _Audit:
    data_class: str
    ranks_left: int


class Audits:
    """Comparisons under way and to be ordered. `tolerance` bounds the relative L2 distance."""

    def __init__(self, spaces: EngineSpaces, tolerance: float, ranks: int, kept: Kept) -> None:
        self.queued: list[Run] = []
        self._spaces = spaces
        self._tolerance = tolerance
        self._ranks = ranks
        self._kept = kept
        self._under_way: dict[int, _Audit] = {}
        self._seen: set[str] = set()
        self._last = 0

    def consider(self, tracked: Tracked, found: tuple[int, int] | None, block_id: int, block: Any) -> None:
        """`found` is tier and number of a block that was computed though a tier holds it; `block` is ours."""
        data_class = tracked.fields.data_class or self._spaces.data_class
        if found is None or not block_id or not tracked.digests:
            return
        if data_class in self._seen and uniform(tracked.rid, "audit") >= _SHARE:
            return
        tier, number = found
        self._last += 1
        self._kept.keep(("audit", self._last), [block])
        self._seen.add(data_class)
        self._under_way[self._last] = _Audit(data_class, self._ranks)
        self.queued.append(
            Run(
                self._last,
                tracked.rid,
                number,
                (tracked.hashes[number],),
                tracked.digests,
                ((block_id,),),
                _SECONDS,
                tier,
            )
        )

    def done(self, answer: AuditDone) -> None:
        """One rank's comparison."""
        audit = self._under_way.get(answer.op)
        if audit is None:
            return
        audit.ranks_left -= 1
        if not audit.ranks_left:
            del self._under_way[answer.op]
            self._kept.give_back(("audit", answer.op))
        if answer.error is None:
            # It was evicted meanwhile, or did not arrive: nothing is proven, so the next one counts.
            self._seen.discard(audit.data_class)
        elif not answer.error <= self._tolerance:
            why = (
                f"a block of the pool differs from the same block computed here by {answer.error:.3g} "
                f"(relative L2), more than {self._tolerance:g}"
            )
            log.error("kvferry shares nothing of data class %s any more: %s", audit.data_class, why)
            self._spaces.refuse(audit.data_class, why)
