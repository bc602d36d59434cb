"""The gate in front of an asynchronous connector that vLLM does not know by name, and whose loads fail."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="engines are vLLM's: pip install 'kvferry[vllm]'")

from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.lines import read_lines

BLOCK = 32
PROMPT = [random.Random(5).randrange(512) for _ in range(6 * BLOCK + 3)]
STORED = 6 * BLOCK


class Bench:
    def __init__(self, served: Any, answer: list[int], record: Path) -> None:
        self.served = served
        self.answer = answer
        self._record = record

    def ask(self, fail_block: int | None) -> DecisionRecord:
        """The record of a request whose load fails at this block; its answer is as if it had not."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().inner.fail_block = fail_block
        assert self.served.ask(PROMPT)[0] == self.answer
        return list(read_lines(self._record / "decisions.jsonl", DecisionRecord))[-1]


@pytest.fixture(scope="module")
def bench(engines: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    record = tmp_path_factory.mktemp("record")
    sys.path.insert(0, str(Path(__file__).parent))
    served = engines(
        {
            "kv_connector": "GatedLateConnector",
            "kv_connector_module_path": "kvferry.engines.vllm.gated",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "inner_module_path": "late_connector",
                "shared_storage_path": str(tmp_path_factory.mktemp("stored")),
                "kvferry": {"record": str(record), "gate": {"policy": "always", "holdout_share": 0}},
            },
        }
    )
    answer, cached = served.ask(PROMPT)
    assert cached == 0
    yield Bench(served, answer, record)
    sys.path.remove(str(Path(__file__).parent))


def test_an_asynchronous_load_is_timed_from_order_to_report(bench: Bench) -> None:
    seen = bench.served.connector.gate.estimates.legs[0].n
    record = bench.ask(None)
    assert record.ledger == {Outcome.POOL_HIT: STORED, Outcome.PARTIAL_BLOCK: 3}
    assert bench.served.connector.gate.estimates.legs[0].n == seen + 1
    assert record.actual.load_seconds is not None
    assert 0 < record.loads[0].wire_seconds <= record.actual.load_seconds


def test_a_load_that_fails_in_the_middle_keeps_what_came_before(bench: Bench) -> None:
    record = bench.ask(2)
    assert record.ledger == {
        Outcome.POOL_HIT: 2 * BLOCK,
        Outcome.FAILED: 4 * BLOCK,
        Outcome.PARTIAL_BLOCK: 3,
    }
    assert record.fallback is Outcome.FAILED


def test_a_load_that_fails_at_its_first_block_does_not_turn_in_circles(bench: Bench) -> None:
    record = bench.ask(0)
    assert record.ledger == {Outcome.FAILED: STORED, Outcome.PARTIAL_BLOCK: 3}
    assert record.actual.computed_tokens == len(PROMPT)


def test_after_failures_loads_go_on(bench: Bench) -> None:
    bench.ask(0)
    assert bench.ask(None).ledger[Outcome.POOL_HIT] == STORED
    assert len(bench.served.connector.gate.transfers) == 0
