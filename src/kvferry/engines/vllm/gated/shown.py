"""The gate's metrics beside those of the connector behind it, from both halves to vLLM's /metrics page.

vLLM carries one statistics object of a connector from each process to the page. Here it has two parts, which
never look into each other: what the inner connector tells, in its own class and words, and the gate's text
(`stats.FerryStats`). Where the inner connector is ours, both texts stand on the page as one set of families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ..stats import FerryStats, ShownMetrics

__all__ = ["PROCESS", "GatedMetrics", "GatedStats"]

PROCESS = "gate"
"""What the gate is called among the processes of an engine."""
_GATE, _INNER = "gate", "inner"


class GatedStats(KVConnectorStats):
    """`data["gate"]` and `data["inner"]`: statistics of either, where there are any."""

    @classmethod
    def of(cls, gate: KVConnectorStats | None, inner: KVConnectorStats | None) -> GatedStats | None:
        """Of one half of the connector; None where neither has anything to tell."""
        parts = {
            name: part
            for name, part in ((_GATE, gate), (_INNER, inner))
            if part is not None and not part.is_empty()
        }
        return cls(parts) if parts else None

    @classmethod
    def read(
        cls, data: dict[str, Any], inner: Callable[[dict[str, Any]], KVConnectorStats | None] | None
    ) -> GatedStats:
        """In the serving process, what `to_dict` gave; `inner` makes the inner part, if it can."""
        parts: dict[str, KVConnectorStats] = {}
        if _GATE in data:
            parts[_GATE] = FerryStats(data[_GATE])
        if _INNER in data and inner is not None:
            made = inner(data[_INNER])
            if made is not None:
                parts[_INNER] = made
        return cls(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it travels."""
        return {name: part.to_dict() for name, part in self.data.items()}

    def reset(self) -> None:
        """Each part by its own rules."""
        for part in self.data.values():
            part.reset()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Part by part."""
        for name, theirs in other.data.items():
            ours = self.data.get(name)
            self.data[name] = theirs if ours is None else ours.aggregate(theirs)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: the inner connector's figures and then the gate's."""
        figures = dict(self.data[_INNER].reduce()) if _INNER in self.data else {}
        if _GATE in self.data:
            figures |= {f"gate: {name}": value for name, value in self.data[_GATE].reduce().items()}
        return figures

    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return all(part.is_empty() for part in self.data.values())


class GatedMetrics(KVConnectorPromMetrics):
    """In the serving process: each part to its own metrics."""

    def __init__(self, inner: KVConnectorPromMetrics | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._inner = inner
        self._gate = inner if isinstance(inner, ShownMetrics) else ShownMetrics(*arguments)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """What an engine has sent."""
        if _GATE in transfer_stats_data:
            self._gate.observe(transfer_stats_data[_GATE], engine_idx)
        if _INNER in transfer_stats_data and self._inner is not None:
            self._inner.observe(transfer_stats_data[_INNER], engine_idx)
