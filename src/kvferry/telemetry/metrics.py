"""Recording metrics: what happened, in the words of the house.

Owns the recorder and its silent form. `Metrics` records nothing and costs nothing; `PrometheusMetrics`
keeps the same calls in a registry of its own, so that two replicas in one process do not mix. Which of them
runs is the caller's explicit choice, in `open_metrics`. Serving the text over HTTP is not done here.

Every method may be called from any thread.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import MissingExtra
from ..gate.facts import Arm, Reason
from ..gate.trial import Saving
from ..outcomes import Outcome
from ..store.tier import Kind
from .names import Choice, Mode, Part, Path, StepKind

if TYPE_CHECKING:
    from .prometheus import PrometheusMetrics

__all__ = ["CONTENT_TYPE", "Metrics", "open_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `render` returns."""


class Metrics:
    """The silent recorder, and the calls that every recorder takes."""

    def decided(self, choice: Choice, reason: Reason, arm: Arm) -> None:
        """The gate has answered for one request."""

    def booked(self, ledger: Mapping[Outcome, int]) -> None:
        """One prompt is settled: tokens per outcome, which sum to its length."""

    def ready(self, path: Path, seconds: float) -> None:
        """A prompt became ready so long after its request arrived."""

    def lost(self, choice: Choice, seconds: float) -> None:
        """A choice turned out wrong: what the other one was predicted to save."""

    def saved(self, seconds: float) -> None:
        """A load was ready so long before the predicted recompute."""

    def saving(self, saving: Saving | None) -> None:
        """What sharing saves against the holdout, as estimated now; None while too little is known."""

    def fell_back(self, cause: Outcome) -> None:
        """A load that was begun did not bring all of its blocks."""

    def failed(self, part: Part) -> None:
        """A part of kvferry failed, and the engine goes on without it."""

    def probed(self, tier: Kind, seconds: float, *, blocks: int, found: int) -> None:
        """One look-up has ended."""

    def loaded(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        """One batch of reads has ended; `moved_bytes` arrived whole."""

    def stored(self, tier: Kind, seconds: float, moved_bytes: int) -> None:
        """One batch of writes has ended; `moved_bytes` were published."""

    def refused(self, tier: Kind, blocks: int) -> None:
        """A tier had no room for so many blocks."""

    def never_read(self, tier: Kind, dropped_bytes: int) -> None:
        """Published bytes were dropped, and nobody had read them."""

    def tier_state(self, tier: Kind, *, up: bool, backoff_seconds: float = 0.0) -> None:
        """Whether calls reach a tier, and else for how long they will not."""

    def tier_usage(self, tier: Kind, *, capacity_bytes: int | None, used_bytes: int | None) -> None:
        """What a tier holds; None where it does not say."""

    def in_flight(self, *, loads: int, load_cap: int, stores: int) -> None:
        """How many loads and publications are at work now, and how many loads may be."""

    def step(self, step: StepKind, tokens: int, seconds: float) -> None:
        """One forward pass over `tokens` tokens."""

    def mode(self, mode: Mode) -> None:
        """The mode that is in force from now on."""

    def render(self) -> bytes:
        """The exposition in Prometheus' text format; a comment where nothing is recorded."""
        return b"# kvferry records no metrics here\n"


def open_metrics(*, required: bool) -> Metrics:
    """A recorder for one process, or one replica.

    With `required`, raises `MissingExtra` where the telemetry extra is not installed; without, the caller
    gets the silent recorder there.
    """
    if importlib.util.find_spec("prometheus_client") is not None:
        return _prometheus()
    if required:
        raise MissingExtra("recording metrics", "telemetry")
    return Metrics()


def _prometheus() -> PrometheusMetrics:
    # Imported late: the client takes tens of milliseconds, and most commands never record.
    from .prometheus import PrometheusMetrics

    return PrometheusMetrics()
