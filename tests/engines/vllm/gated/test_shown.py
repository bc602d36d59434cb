"""The gate's metrics from an engine's processes to vLLM's page, beside those of the connector behind it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the page is vLLM's: pip install 'kvferry[vllm]'")

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

from kvferry.engines.vllm import gated
from kvferry.engines.vllm.gated.connector import Gated
from kvferry.engines.vllm.gated.shown import GatedStats
from kvferry.engines.vllm.stats import FerryStats

from .test_connector import ALWAYS, Played

KINDS = {kind: kind for kind in (Counter, Gauge, Histogram)}


def text(tokens: int) -> str:
    return (
        "# HELP kvferry_prompt_tokens_total Tokens.\n# TYPE kvferry_prompt_tokens_total counter\n"
        f"kvferry_prompt_tokens_total {tokens}\n"
    )


def ours(process: str, tokens: int) -> FerryStats:
    return FerryStats({"kvferry": {process: text(tokens)}})


def counted(by: int) -> OffloadingConnectorStats:
    stats = OffloadingConnectorStats()
    stats.increase_counter("loads", by, ())
    return stats


def page(connector: str) -> Any:
    """What the serving process makes of this connector, which it never instantiates."""
    transfer = SimpleNamespace(
        kv_connector=f"Gated{connector}",
        kv_connector_module_path="kvferry.engines.vllm.gated",
        kv_connector_extra_config={},
    )
    config = SimpleNamespace(kv_transfer_config=transfer)
    return getattr(gated, f"Gated{connector}").build_prom_metrics(config, KINDS, [], {})


def shown(families: Iterable[Any]) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["engine"], sample.labels["process"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "kvferry_prompt_tokens_total"
    }


def travelled(stats: GatedStats | None) -> dict[str, Any]:
    """From a worker to the engine's process, and on to the serving one."""
    assert stats is not None
    data: dict[str, Any] = pickle.loads(pickle.dumps(stats)).to_dict()
    return data


def test_statistics_of_workers_and_scheduler_are_joined_part_by_part() -> None:
    worker, other = GatedStats.of(None, counted(2)), GatedStats.of(None, counted(3))
    scheduler = GatedStats.of(ours("gate", 7), counted(1))
    assert worker is not None
    assert other is not None
    assert scheduler is not None
    data = travelled(worker.aggregate(other).aggregate(scheduler))
    assert data["inner"]["data"]["loads"] == {(): 6}
    assert data["gate"] == {"kvferry": {"gate": text(7)}}


def test_nothing_told_is_nothing_sent() -> None:
    assert GatedStats.of(None, OffloadingConnectorStats()) is None


def test_a_gate_before_a_connector_without_metrics_has_its_own() -> None:
    metrics = page("ExampleConnector")
    metrics.observe(travelled(GatedStats.of(ours("gate", 7), None)), 3)
    assert shown(metrics._gate.collect()) == {("3", "gate"): 7.0}


def test_our_own_connector_and_its_gate_share_a_page() -> None:
    metrics = page("FerryConnector")
    metrics.observe(travelled(GatedStats.of(ours("gate", 7), ours("scheduler", 5))), 0)
    metrics.observe(travelled(GatedStats.of(None, ours("worker-0", 1))), 0)
    assert shown(metrics._inner.collect()) == {
        ("0", "gate"): 7.0,
        ("0", "scheduler"): 5.0,
        ("0", "worker-0"): 1.0,
    }
    assert metrics._gate is metrics._inner


def test_the_log_line_has_both() -> None:
    data = travelled(GatedStats.of(ours("gate", 7), counted(2)))
    figures = gated.GatedOffloadingConnector.build_kv_connector_stats(data).reduce()
    assert figures["gate: prompt tokens"] == 7
    assert figures["loads"] == 2


@pytest.mark.parametrize("broken", [False, True])
def test_what_the_gate_counted_leaves_with_a_step(broken: bool) -> None:
    played = Played(gate=ALWAYS)
    Gated._show(played.connector, played.attended)
    try:
        if broken:
            played.attended.gate.answer = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        played.serve("a")
        assert played.connector.has_pending_push_work()
        end, found = time.monotonic() + 20, ""
        line = 'kvferry_failures_total{part="cache"} 1.0' if broken else 'outcome="disk_hit"} 320.0'
        while line not in found:
            assert time.monotonic() < end, found
            stats = played.connector.get_kv_connector_stats()
            found = stats.data["gate"].data["kvferry"]["gate"] if stats is not None else found
            time.sleep(0.01)
        assert f'kvferry_mode{{mode="{"off" if broken else "on"}"}} 1.0' in found
    finally:
        played.connector._feed.close()
