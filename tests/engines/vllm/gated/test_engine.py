"""The gate in front of vLLM's example connector, in real engines: opens, vetoes, watches, and passes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="engines are vLLM's: pip install 'kvferry[vllm]'")

from kvferry.gate.facts import Reason
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.lines import read_lines

BLOCK = 32
TOKENS = 10 * BLOCK + 7
STORED = 10 * BLOCK


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(TOKENS)]


class Bench:
    """A plain engine's answers, and a gated engine whose inner connector has stored the prompts."""

    def __init__(self, served: Any, plain: dict[int, list[int]], record: Path) -> None:
        self.served = served
        self.plain = plain
        self._record = record

    def ask(self, seed: int, mode: str, policy: str = "rule", **params: Any) -> int:
        """Prompt tokens that were cached; the answer is checked against the plain engine's."""
        self.served.connector.gate.change(mode=mode, policy=policy)
        tokens, cached = self.served.ask(prompt(seed), **params)
        assert tokens == self.plain[seed]
        return cached

    def last(self) -> DecisionRecord:
        record = list(read_lines(self._record / "decisions.jsonl", DecisionRecord))[-1]
        assert sum(record.ledger.values()) == TOKENS
        return record


@pytest.fixture(scope="module")
def bench(engines: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    stored, record = tmp_path_factory.mktemp("stored"), tmp_path_factory.mktemp("record")
    served = engines(None)
    plain = {seed: served.ask(prompt(seed))[0] for seed in range(4)}
    served = engines(
        {
            "kv_connector": "GatedExampleConnector",
            "kv_connector_module_path": "kvferry.engines.vllm.gated",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "shared_storage_path": str(stored),
                "kvferry": {"record": str(record), "gate": {"holdout_share": 0, "explore_share": 0}},
            },
        }
    )
    bench = Bench(served, plain, record)
    for seed in range(3):
        assert bench.ask(seed, "on") == 0
    return bench


def test_a_prompt_that_is_not_held_is_computed(bench: Bench) -> None:
    assert bench.ask(3, "on", "always") == 0
    record = bench.last()
    assert record.ledger == {Outcome.NEVER_PUBLISHED: STORED, Outcome.PARTIAL_BLOCK: 7}
    assert record.actual.computed_tokens == TOKENS


def test_an_open_gate_loads(bench: Bench) -> None:
    assert bench.ask(0, "on", "always") == STORED
    record = bench.last()
    assert record.decision is not None
    assert record.decision.reason is Reason.ALWAYS
    assert record.ledger == {Outcome.POOL_HIT: STORED, Outcome.PARTIAL_BLOCK: 7}


def test_a_load_is_timed(bench: Bench) -> None:
    seen = bench.served.connector.gate.estimates.legs[0].n
    bench.ask(1, "on", "always")
    record = bench.last()
    assert bench.served.connector.gate.estimates.legs[0].n == seen + 1
    assert record.loads[0].wire_seconds > 0
    assert record.actual.ready_seconds is not None
    assert record.loads[0].wire_seconds < record.actual.ready_seconds


def test_a_veto_computes(bench: Bench) -> None:
    assert bench.ask(0, "on", "never") == 0
    record = bench.last()
    assert record.decision is not None
    assert record.decision.reason is Reason.NEVER
    assert record.ledger == {Outcome.DECLINED: STORED, Outcome.PARTIAL_BLOCK: 7}
    assert record.actual.recompute_seconds is not None
    assert record.actual.recompute_seconds > 0


def test_the_gate_opens_again(bench: Bench) -> None:
    assert bench.ask(1, "on", "never") == 0
    assert bench.ask(1, "on", "always") == STORED


def test_shadow_loads_and_says_what_it_thinks(bench: Bench) -> None:
    assert bench.ask(2, "shadow", "never") == STORED
    record = bench.last()
    assert record.decision is not None
    assert record.decision.reason is Reason.SHADOW
    assert record.notes[0].startswith("the gate only watches; it would have computed (never)")
    assert record.ledger == {Outcome.POOL_HIT: STORED, Outcome.PARTIAL_BLOCK: 7}


def test_off_loads_and_decides_nothing(bench: Bench) -> None:
    assert bench.ask(2, "off", "never") == STORED
    assert bench.last().decision is None


def test_a_handoff_is_never_vetoed(bench: Bench) -> None:
    params = {"kv_transfer_params": {"do_remote_prefill": True}}
    assert bench.ask(0, "on", "never", **params) == STORED
    record = bench.last()
    assert record.path == "handoff"
    assert record.ledger == {Outcome.HANDOFF: STORED, Outcome.PARTIAL_BLOCK: 7}


def test_the_request_s_own_limit_is_kept(bench: Bench) -> None:
    params = {"kv_transfer_params": {"kvferry": {"max_load_tokens": 64, "decision_id": "d1"}}}
    assert bench.ask(0, "on", "always", **params) == 0
    record = bench.last()
    assert record.decision is not None
    assert (record.decision.reason, record.decision_id) == (Reason.NOT_ALLOWED, "d1")


def test_a_request_whose_first_token_is_its_last_is_booked_whole(bench: Bench) -> None:
    bench.served.connector.gate.change(mode="on", policy="always")
    seen = bench.served.connector.gate.estimates.legs[0].n
    tokens, cached = bench.served.ask(prompt(0), max_tokens=1)
    assert (tokens, cached) == (bench.plain[0][:1], STORED)
    record = bench.last()
    assert record.ledger == {Outcome.POOL_HIT: STORED, Outcome.PARTIAL_BLOCK: 7}
    assert record.actual.computed_tokens == 7
    assert bench.served.connector.gate.estimates.legs[0].n == seen + 1


def test_it_is_switched_while_it_runs(bench: Bench) -> None:
    attended = bench.served.connector._attended
    assert attended.switches.change({"gate.mode": "on", "gate.policy": "never"})["gate.policy"] == "never"
    assert bench.served.ask(prompt(0))[1] == 0


def test_a_local_hit_needs_no_connector(bench: Bench) -> None:
    bench.served.connector.gate.change(mode="on", policy="never")
    bench.served.ask(prompt(0))
    tokens, cached = bench.served.ask(prompt(0), reset=False)
    assert (tokens, cached) == (bench.plain[0], STORED)
    assert bench.last().ledger[Outcome.DEVICE_HIT] == STORED


def test_the_engine_s_calls_never_broke_the_gate(bench: Bench) -> None:
    assert bench.served.connector.gate is not None
    assert len(bench.served.connector.gate.transfers) == 0


def test_prefill_was_learned_from_the_engine_s_own_steps(bench: Bench) -> None:
    assert bench.served.connector.gate.estimates.prefill.n >= 4
