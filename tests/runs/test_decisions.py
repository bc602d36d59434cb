"""decisions.jsonl: a record holds all that a decision depended on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import FormatError
from kvferry.gate.decide import decide
from kvferry.gate.facts import Arm, Facts, GateTerms, Live, Segment
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import (
    SCHEMA_VERSION,
    Actual,
    DecisionRecord,
    LoadRecord,
    decode_record,
    encode_record,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "decisions.jsonl"
SECONDS = st.floats(0.0, 100.0)


def facts(seconds_per_byte: float = 1e-9, local_blocks: int = 0, arm: Arm = Arm.ON) -> Facts:
    return Facts(
        prompt_tokens=1000,
        local_tokens=16 * local_blocks,
        block_tokens=16,
        bytes_per_token=1000,
        segments=(
            Segment(0, 20, 0.001, seconds_per_byte, 1.0, 1.1, 0, 9),
            Segment(1, 60, 0.002, 2e-9, 1.0, 1.3, 1, 5),
        ),
        live=Live(0.002, 1e-3, 1e-8, 1.0, 40, 2048, running_requests=3, decode_growth=0.1),
        arm=arm,
        deadline_seconds=30.0,
    )


def record(**changes: object) -> DecisionRecord:
    known = facts()
    terms = GateTerms()
    base = {
        "version": SCHEMA_VERSION,
        "request_id": "r",
        "replica": "a",
        "arrival": 1.0,
        "tenant_class": "default",
        "mode": "on",
        "path": "pool_hit",
        "prompt_tokens": 1000,
        "block_tokens": 16,
        "bytes_per_token": 1000,
        "found_end_block": 60,
        "facts": known,
        "terms": terms,
        "decision": decide(known, terms),
        "outcome": Outcome.POOL_HIT,
        "ledger": {Outcome.POOL_HIT: 960, Outcome.PARTIAL_BLOCK: 40},
        "loads": (LoadRecord(tier="pool", start_block=0, stop_block=60, good_blocks=60, bytes=960_000),),
        "actual": Actual(lookup_seconds=0.001, load_seconds=0.02),
    }
    return DecisionRecord(**(base | changes))  # type: ignore[arg-type]


def test_what_is_written_is_read() -> None:
    written = record()
    assert decode_record(encode_record(written)) == written


@given(seconds_per_byte=st.floats(0.0, 1e-5), local=st.integers(0, 59), arm=st.sampled_from(Arm))
def test_a_record_replays_its_decision(seconds_per_byte: float, local: int, arm: Arm) -> None:
    known, terms = facts(seconds_per_byte, local, arm), GateTerms(margin_share=0.1)
    read = decode_record(encode_record(record(facts=known, terms=terms, decision=decide(known, terms))))
    assert read.facts is not None
    assert decide(read.facts, read.terms) == read.decision


@given(SECONDS, SECONDS)
def test_times_lose_nothing(load: float, ready: float) -> None:
    actual = Actual(load_seconds=load, ready_seconds=ready)
    assert decode_record(encode_record(record(actual=actual))).actual == actual


def test_a_request_without_a_decision_is_a_record_too() -> None:
    aborted = record(
        facts=None, decision=None, outcome=None, aborted=True, ledger={Outcome.ABORTED: 1000}, loads=()
    )
    read = decode_record(encode_record(aborted))
    assert read == aborted
    assert read.offered_tokens == 0


def test_what_was_on_offer_does_not_count_what_was_local() -> None:
    assert record(facts=facts(local_blocks=10)).offered_tokens == 50 * 16


def test_a_record_is_one_line() -> None:
    assert b"\n" not in encode_record(record(notes=("two\nlines",)))


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b'{"version": "one"}'])
def test_a_line_that_is_no_record_is_an_error(line: bytes) -> None:
    with pytest.raises(FormatError, match="not a decision record"):
        decode_record(line)


def test_a_record_of_another_version_is_an_error() -> None:
    with pytest.raises(FormatError, match="99"):
        decode_record(encode_record(record(version=99)))


@pytest.mark.parametrize("line", GOLDEN.read_bytes().splitlines() if GOLDEN.exists() else [])
def test_the_golden_records_are_read_and_their_parts_sum_to_the_prompt(line: bytes) -> None:
    read = decode_record(line)
    assert read.version == SCHEMA_VERSION
    assert sum(read.ledger.values()) == read.prompt_tokens
