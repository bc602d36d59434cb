"""What operators and experiments may see and switch while the engine runs: `Controls` over one gate.

Called on a server's threads while the scheduler's thread decides. Nothing is locked: a switch replaces whole
values, and what is read are figures that need not be of one instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ....errors import InputError
from ....runs.decisions import DecisionRecord
from ....telemetry.metrics import Metrics
from ....telemetry.names import Mode, Part
from .gate import ForeignGate

__all__ = ["Switches"]

_KEPT_RECORDS = 20_000
_SWITCHED = ("gate.mode", "gate.policy")


class Switches:
    """The controls of a gate in front of another connector."""

    def __init__(self, gate: ForeignGate, metrics: Metrics) -> None:
        self._gate = gate
        self._metrics = metrics
        self._records: deque[tuple[int, DecisionRecord]] = deque(maxlen=_KEPT_RECORDS)
        self._following = 0
        self._broken = False

    def add(self, record: DecisionRecord) -> None:
        """A request was settled."""
        self._records.append((self._following, record))
        self._following += 1

    def broke(self) -> None:
        """The gate has raised, and decides nothing any more."""
        self._broken = True
        self._metrics.failed(Part.CACHE)

    def settings(self) -> Mapping[str, Any]:
        """Switches, and what was learned."""
        gate = self._gate
        a, b, c = gate.estimates.prefill.coefficients
        leg = gate.estimates.legs[0]
        return {
            "gate.mode": gate.mode,
            "gate.policy": gate.terms.policy,
            "state": {
                "loads_in_flight": len(gate.transfers),
                "load_cap": gate.transfers.budget.cap,
                "prefill": {"a": a, "b": b, "c": c, "observations": gate.estimates.prefill.n},
                "legs": [
                    {
                        "tier": gate.transfers.kind.value,
                        "setup_seconds": leg.coefficients[0],
                        "bytes_per_second": leg.bytes_per_second if leg.coefficients[1] > 0 else None,
                        "spread_p95": leg.spread.quantile(0.95),
                        "observations": leg.n,
                    }
                ],
            },
        }

    def change(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set mode, policy or both. Raises `InputError`, and then changes nothing."""
        for name in changes:
            if name not in _SWITCHED:
                raise InputError(f"{name!r} cannot be switched; known are {', '.join(_SWITCHED)}")
        self._gate.change(mode=changes.get("gate.mode"), policy=changes.get("gate.policy"))
        return self.settings()

    def decisions(self, since: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Records from number `since` on, and the number to ask for next."""
        following = self._following
        wanted = [record for number, record in list(self._records) if number >= since]
        return [msgspec.to_builtins(record) for record in wanted], following

    def metrics(self) -> bytes:
        """All metrics as text. What has a value at any time, and no event, is asked for here."""
        gate = self._gate
        self._metrics.mode(Mode.OFF if self._broken else Mode(gate.mode))
        self._metrics.saving(gate.trial.saving())
        self._metrics.in_flight(loads=len(gate.transfers), load_cap=gate.transfers.budget.cap, stores=0)
        return self._metrics.render()
