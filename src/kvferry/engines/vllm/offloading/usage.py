"""What the tiers behind a tier hold and whether they answer, asked from time to time.

Asking is a call to a tier and may take its time, so it has a thread of its own: vLLM's manager asks a tier
for its stats at every step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from ....store.tier import Kind, Tier
from ....telemetry.metrics import Metrics
from ....telemetry.tiers import record_tiers, record_tiers_gone

__all__ = ["UsageWatch"]

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0


class UsageWatch:
    """Records until it is closed; then the tiers count as gone."""

    def __init__(
        self, metrics: Metrics, tiers: Sequence[Tier], kinds: Sequence[Kind], timeout_seconds: float
    ) -> None:
        self._metrics = metrics
        self._tiers, self._kinds = tuple(tiers), tuple(kinds)
        self._timeout_seconds = timeout_seconds
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="kvferry-usage", daemon=True).start()

    def close(self) -> None:
        """Stop asking. A question under way ends by itself, and its answer is not recorded."""
        with self._lock:
            self._closed.set()
            record_tiers_gone(self._metrics, self._kinds)

    def _run(self) -> None:
        while not self._closed.is_set():
            heard = _Heard(self._metrics)
            try:
                record_tiers(heard, self._tiers, self._timeout_seconds)
            except Exception:
                log.debug("tiers could not be asked what they hold", exc_info=True)
            with self._lock:
                if not self._closed.is_set():
                    heard.pass_on()
            self._closed.wait(_PERIOD_SECONDS)


class _Heard(Metrics):
    """Keeps what was said of tiers until all have answered."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._states: list[tuple[Kind, bool, float]] = []
        self._usages: list[tuple[Kind, int | None, int | None]] = []

    def tier_state(self, tier: Kind, *, up: bool, backoff_seconds: float = 0.0) -> None:
        self._states.append((tier, up, backoff_seconds))

    def tier_usage(self, tier: Kind, *, capacity_bytes: int | None, used_bytes: int | None) -> None:
        self._usages.append((tier, capacity_bytes, used_bytes))

    def pass_on(self) -> None:
        """Record it."""
        for tier, up, backoff_seconds in self._states:
            self._metrics.tier_state(tier, up=up, backoff_seconds=backoff_seconds)
        for tier, capacity_bytes, used_bytes in self._usages:
            self._metrics.tier_usage(tier, capacity_bytes=capacity_bytes, used_bytes=used_bytes)
