"""The gate in front of our own connector: two gates, and the outer one may close what the inner one opens."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="engines are vLLM's: pip install 'kvferry[vllm]'")

from prometheus_client import REGISTRY

from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.lines import read_lines

BLOCK = 32
PROMPT = [random.Random(9).randrange(512) for _ in range(6 * BLOCK + 3)]
STORED = 6 * BLOCK


class Bench:
    def __init__(self, served: Any, answer: list[int], record: Path) -> None:
        self.served = served
        self.answer = answer
        self._record = record

    def ask(self, policy: str) -> int:
        """Prompt tokens that were cached; the answer is the plain engine's."""
        self.served.connector.gate.change(mode="on", policy=policy)
        end = time.monotonic() + 20
        while not self.served.llm.reset_prefix_cache():
            # What is being published comes back with a step.
            assert time.monotonic() < end
            self.served.ask([7, 8, 9], reset=False)
        tokens, cached = self.served.ask(PROMPT, reset=False)
        assert tokens == self.answer
        return cached

    def last(self) -> DecisionRecord:
        record = list(read_lines(self._record / "decisions.jsonl", DecisionRecord))[-1]
        assert sum(record.ledger.values()) == len(PROMPT)
        return record


@pytest.fixture(scope="module")
def bench(engines: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    record = tmp_path_factory.mktemp("record")
    plain = engines(None).ask(PROMPT)[0]
    quiet = {"holdout_share": 0, "explore_share": 0}
    served = engines(
        {
            "kv_connector": "GatedFerryConnector",
            "kv_connector_module_path": "kvferry.engines.vllm.gated",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "host_memory": "64MiB",
                "publish": "all",
                "gate": {"policy": "always", **quiet},
                "timeouts": {"probe": "5s"},
                "kvferry": {"record": str(record), "gate": quiet},
            },
        },
        prefix_caching_hash_algo="sha256_cbor",
        disable_log_stats=False,
    )
    bench = Bench(served, plain, record)
    assert bench.ask("always") == 0
    return bench


def test_an_open_gate_loads(bench: Bench) -> None:
    assert bench.ask("always") == STORED
    assert bench.last().ledger == {Outcome.HOST_HIT: STORED, Outcome.PARTIAL_BLOCK: 3}


def test_a_veto_computes(bench: Bench) -> None:
    assert bench.ask("never") == 0
    assert bench.last().ledger == {Outcome.DECLINED: STORED, Outcome.PARTIAL_BLOCK: 3}


def test_and_it_opens_again(bench: Bench) -> None:
    assert bench.ask("never") == 0
    assert bench.ask("always") == STORED


def test_both_gates_stand_on_vllm_s_own_page(bench: Bench) -> None:
    """Through vLLM's own path: the engine's steps, its statistics, and the registry that /metrics shows."""
    bench.ask("always")
    booked = bench.last().ledger[Outcome.HOST_HIT]
    wanted = {"gate", "scheduler"}
    end = time.monotonic() + 20
    tokens: dict[str, float] = {}
    while any(tokens.get(process, 0) < booked for process in wanted):
        assert time.monotonic() < end, tokens
        bench.served.ask([7, 8, 9], reset=False)
        tokens = samples("kvferry_ledger_tokens_total", outcome="host_hit")
    assert tokens.keys() == wanted
    assert samples("kvferry_mode", mode="on") == dict.fromkeys(wanted, 1.0)


def samples(name: str, **labels: str) -> dict[str, float]:
    """Values on the page by process; a family stands there once, or a scrape would fail."""
    families = [family for family in REGISTRY.collect() if family.name.startswith("kvferry_")]
    assert len({family.name for family in families}) == len(families)
    return {
        sample.labels["process"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }
