"""The ways in which a hand-off fails, each with the outcome that its tokens are booked under.

A failed hand-off is no failed request: the receiver computes the prompt itself.
"""

from __future__ import annotations

from ...errors import EngineError
from ...outcomes import Outcome

__all__ = ["Cut", "Damaged", "HandoffFailed", "late"]


class HandoffFailed(EngineError):
    """The prefill did not arrive; `cause` says why, in the words of the ledger."""

    def __init__(self, cause: Outcome, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Cut(HandoffFailed):
    """The other side, or the way to it, is gone; the hand-off may go on over another connection."""

    def __init__(self, message: str) -> None:
        super().__init__(Outcome.FAILED, message)


class Damaged(HandoffFailed):
    """A chunk is not what was sent; it may be sent again."""

    def __init__(self, message: str) -> None:
        super().__init__(Outcome.CORRUPT, message)


def late(what: str) -> HandoffFailed:
    """The deadline has passed while waiting for `what`."""
    return HandoffFailed(Outcome.LATE, f"the hand-off's deadline passed while waiting for {what}")
