"""Which layers of a hand-off are complete: the one gate between bytes that arrive and attention.

On the receiver attention waits here for its layer; on the sender sending waits here for a layer's prefill.
Layers complete in order, so one count says it all. Once the hand-off has failed nothing becomes ready any
more, and everybody who waits is told.
"""

from __future__ import annotations

import threading

from ...clock import Clock
from .failed import HandoffFailed, late

__all__ = ["Layers"]


class Layers:
    """Leading layers that are complete, of `total`. May be used from any thread."""

    def __init__(self, total: int, clock: Clock) -> None:
        self.total = total
        self._clock = clock
        self._ready = 0
        self._failure: HandoffFailed | None = None
        self._changed = threading.Condition()

    @property
    def ready(self) -> int:
        """How many leading layers are complete."""
        return self._ready

    @property
    def failure(self) -> HandoffFailed | None:
        """Why no more will come; None while they may."""
        return self._failure

    def advance(self, count: int) -> None:
        """The first `count` layers are complete. Never goes back, and does nothing after a failure."""
        if count > self.total:
            raise ValueError(f"{count} of {self.total} layers cannot be complete")
        with self._changed:
            if self._failure is None and count > self._ready:
                self._ready = count
                self._changed.notify_all()

    def fail(self, failure: HandoffFailed) -> None:
        """No further layer will be complete; the first failure stands. Whole hand-offs cannot fail."""
        with self._changed:
            if self._failure is None and self._ready < self.total:
                self._failure = failure
                self._changed.notify_all()

    def wait(self, layer: int, deadline: float) -> None:
        """Until `layer` is complete. Raises HandoffFailed where it will not be, or not in time."""
        if layer < self._ready:
            return
        with self._changed:
            while layer >= self._ready:
                if self._failure is not None:
                    raise self._failure
                left = deadline - self._clock.now()
                if left <= 0.0:
                    raise late(f"layer {layer}")
                self._changed.wait(left)
