"""Between vLLM's calls and the gate: what is translated, and what happens when the gate breaks."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.clock import VirtualClock
from kvferry.config import load
from kvferry.cost.profile import decode_profile
from kvferry.engines.vllm.gated.attended import Attended, bytes_per_token
from kvferry.engines.vllm.gated.connector import Gated
from kvferry.errors import InputError, KvferryError
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.lines import read_lines
from kvferry.store.tier import Kind

BLOCK = 16


class Inner:
    """An inner connector that has 320 tokens of everything on its disk."""

    def __init__(self) -> None:
        self.allocated: list[int] = []

    def on_new_request(self, request: Any) -> None: ...

    def get_num_new_matched_tokens(self, request: Any, local: int) -> tuple[int, bool]:
        return 320 - local, True

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        self.allocated.append(tokens)

    def get_external_cache_hit_sources(self, request: Any, tokens: int) -> dict[Any, int]:
        return {"disk": tokens}

    def build_connector_meta(self, scheduled: Any) -> str:
        return "the inner's own"

    def update_connector_output(self, output: Any) -> None: ...

    def get_kv_connector_stats(self) -> None: ...

    def has_pending_push_work(self) -> bool:
        return False

    def request_finished(self, request: Any, blocks: list[int]) -> tuple[bool, None]:
        return True, None

    def shutdown(self) -> None: ...


class Played:
    """A gated connector on the scheduler's side, without an engine."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        config = load(env={}, json=settings).config
        self.attended = Attended(
            config,
            connector="Inner",
            kind=Kind.POOL,
            model="m",
            block_tokens=BLOCK,
            bytes_per_token=1000,
            chunk_tokens=4096,
            clock=self.clock,
        )
        self.connector = object.__new__(Gated)
        self.connector.inner = self.inner = Inner()
        self.connector._attended = self.attended
        self.connector._asynchronous = {}
        type(self.connector).behind = SimpleNamespace(name="Inner")

    def serve(self, rid: str, *, tokens: int = 330, **params: Any) -> tuple[int | None, bool]:
        connector = self.connector
        request = SimpleNamespace(
            request_id=rid,
            num_prompt_tokens=tokens,
            num_computed_tokens=0,
            kv_transfer_params=params or None,
            block_hashes=[bytes([i]) * 32 for i in range(tokens // BLOCK)],
            status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
        )
        connector.on_new_request(request)
        answer, asynchronous = connector.get_num_new_matched_tokens(request, 0)
        blocks = SimpleNamespace(get_block_ids=lambda: (list(range(20)),))
        connector.update_state_after_alloc(request, blocks, answer or 0)
        if answer:
            self.clock.advance(0.01)
            self.output(finished_recving={rid})
            request.num_computed_tokens = answer
        left = tokens - (answer or 0)
        connector.build_connector_meta(SimpleNamespace(num_scheduled_tokens={rid: left}))
        self.clock.advance(left / 1000)
        self.output()
        connector.get_kv_connector_stats()
        connector.request_finished(request, [])
        return answer, asynchronous

    def output(self, **given: Any) -> None:
        empty: dict[str, Any] = {
            "finished_recving": None,
            "failed_recving": set(),
            "invalid_block_ids": set(),
        }
        self.connector.update_connector_output(SimpleNamespace(**{**empty, **given}))


ALWAYS = {"mode": "on", "policy": "always", "holdout_share": 0}
NEVER = {"mode": "on", "policy": "never", "holdout_share": 0}


def test_an_open_gate_passes_the_answer_as_it_is() -> None:
    assert Played(gate=ALWAYS).serve("a") == (320, True)


def test_a_veto_is_no_load_at_all() -> None:
    assert Played(gate=NEVER).serve("a") == (0, False)


def test_after_a_veto_the_inner_connector_hears_that_nothing_is_loaded() -> None:
    played = Played(gate=NEVER)
    played.serve("a")
    assert played.inner.allocated == [0]


def test_the_inner_metadata_is_not_wrapped() -> None:
    played = Played()
    scheduled = SimpleNamespace(num_scheduled_tokens={})
    assert played.connector.build_connector_meta(scheduled) == "the inner's own"


def test_a_broken_gate_is_stepped_around(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(gate=NEVER)

    def breaks(*_: Any) -> int:
        raise RuntimeError("boom")

    played.attended.gate.answer = breaks  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        assert played.serve("a") == (320, True)
    assert played.connector.gate is None
    assert "the gate has failed" in caplog.text


def test_a_broken_gate_stays_out_of_the_way() -> None:
    played = Played(gate=NEVER)
    played.attended.gate.step_ended = lambda: 1 / 0  # type: ignore[method-assign]
    played.serve("a")
    assert played.serve("b") == (320, True)


def test_the_record_reads_like_any_other(tmp_path: Path) -> None:
    played = Played(gate=ALWAYS, record=str(tmp_path), replica="r1")
    played.serve("a", kvferry={"decision_id": "d7", "data_class": "public"})
    (record,) = read_lines(tmp_path / "decisions.jsonl", DecisionRecord)
    assert (record.request_id, record.replica, record.decision_id) == ("a", "r1", "d7")
    assert (record.tenant_class, record.path) == ("public", "disk_hit")
    assert record.ledger == {Outcome.DISK_HIT: 320, Outcome.PARTIAL_BLOCK: 10}
    assert len(record.keys) == 330 // BLOCK


def test_a_handoff_has_a_path_of_its_own(tmp_path: Path) -> None:
    played = Played(gate=NEVER, record=str(tmp_path))
    assert played.serve("a", do_remote_prefill=True) == (320, True)
    (record,) = read_lines(tmp_path / "decisions.jsonl", DecisionRecord)
    assert record.path == "handoff"
    assert record.ledger == {Outcome.HANDOFF: 320, Outcome.PARTIAL_BLOCK: 10}


def test_records_that_cannot_be_written_stop_no_decision(tmp_path: Path) -> None:
    played = Played(gate=NEVER, record=str(tmp_path))

    def full(record: Any) -> None:
        raise KvferryError("no space left")

    assert played.attended._lines is not None
    played.attended._lines.append = full  # type: ignore[method-assign]
    played.serve("a")
    assert played.serve("b") == (0, False)


def test_what_was_learned_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    first = Played(gate=ALWAYS, profile=str(path))
    first.serve("a")
    first.connector.shutdown()
    assert decode_profile(path.read_bytes(), str(path)).legs["Inner"].observations == 1
    assert Played(profile=str(path)).attended.gate.estimates.legs[0].n == 1


def test_it_is_switched_while_it_runs() -> None:
    played = Played(gate=NEVER)
    assert played.serve("a") == (0, False)
    assert played.attended.switches.change({"gate.policy": "always"})["gate.policy"] == "always"
    assert played.serve("b") == (320, True)


def test_a_switch_that_is_none_changes_nothing() -> None:
    played = Played(gate=NEVER)
    with pytest.raises(InputError, match="pool"):
        played.attended.switches.change({"gate.mode": "off", "pool.bytes_per_second": 1})
    assert played.attended.gate.mode == "on"


def test_records_can_be_fetched_from_a_number_on() -> None:
    played = Played(gate=ALWAYS)
    for rid in "abc":
        played.serve(rid)
    records, following = played.attended.switches.decisions(2)
    assert ([record["request_id"] for record in records], following) == (["c"], 3)


def test_metrics_count_what_the_books_hold() -> None:
    pytest.importorskip("prometheus_client")
    played = Played(gate=ALWAYS)
    played.serve("a")
    text = played.attended.switches.metrics().decode()
    assert 'kvferry_ledger_tokens_total{outcome="disk_hit"} 320.0' in text


def test_a_token_weighs_what_all_layers_of_all_groups_hold() -> None:
    def group(layers: int, page: int, block: int) -> Any:
        spec = SimpleNamespace(page_size_bytes=page, block_size=block)
        return SimpleNamespace(kv_cache_spec=spec, layer_names=[str(i) for i in range(layers)])

    groups = [group(2, 3200, 16), group(4, 6400, 32)]
    assert bytes_per_token(SimpleNamespace(kv_cache_groups=groups), ranks=1) == 2 * 200 + 4 * 200
    twice = SimpleNamespace(kv_cache_groups=groups, kv_tp_replicas=2)
    assert bytes_per_token(twice, ranks=4) == 2 * 1200
