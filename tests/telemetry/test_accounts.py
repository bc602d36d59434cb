"""From accounts and measured tiers to metrics."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvferry.cache.account import Account, LoadedRun
from kvferry.cache.commands import Evicted, Legs
from kvferry.gate.facts import Arm, Decision, GateTerms, Reason
from kvferry.outcomes import Outcome
from kvferry.store.tier import Found, Got, Kind, Put
from kvferry.telemetry import Metrics, observer, path_of, record_account
from kvferry.telemetry.accounts import mourner
from kvferry.telemetry.names import Path

TIERS = (Kind.HOST, Kind.DISK, Kind.POOL)
LOADING = Decision(
    3,
    Reason.PAYS,
    load_median_seconds=0.5,
    recompute_seconds=2.0,
    candidate_end_block=3,
    candidate_bytes=3000,
)
COMPUTING = msgspec.structs.replace(LOADING, end_block=0, reason=Reason.SLOWER)
NOTHING = Decision(0, Reason.NOTHING_FOUND)


class Heard(Metrics):
    """Remembers every call."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in ("calls", "__class__"):
            return object.__getattribute__(self, name)

        def hear(*args: Any, **kwargs: Any) -> None:
            self.calls[name] = (*args, *kwargs.values())

        return hear


def account(**given: Any) -> Account:
    fields: dict[str, Any] = {
        "rid": "r",
        "arrived": 0.0,
        "arm": Arm.ON,
        "mode": "on",
        "prompt_tokens": 100,
        "keys": (),
        "found_end": 3,
        "facts": None,
        "terms": GateTerms(),
        "decision": NOTHING,
        "ledger": {Outcome.NEVER_PUBLISHED: 96, Outcome.PARTIAL_BLOCK: 4},
        "loads": (),
        "lookup_seconds": 0.0,
        "load_seconds": None,
        "recompute_seconds": None,
        "prefill_seconds": 0.0,
        "computed_tokens": 100,
        "ready_seconds": 2.5,
        "aborted": False,
        "fallback": None,
        "lost_seconds": 0.0,
    }
    return Account(**{**fields, **given})


def run(tier: int, good: int) -> LoadedRun:
    return LoadedRun(tier=tier, start=0, stop=3, good=good, legs=Legs())


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, Path.COLD),
        ({"decision": None}, Path.COLD),
        ({"ledger": {Outcome.DEVICE_HIT: 96, Outcome.PARTIAL_BLOCK: 4}}, Path.LOCAL_HIT),
        ({"decision": LOADING, "loads": (run(0, 3),)}, Path.HOST_HIT),
        ({"decision": LOADING, "loads": (run(1, 3),)}, Path.DISK_HIT),
        ({"decision": LOADING, "loads": (run(0, 1), run(2, 2))}, Path.POOL_HIT),
        ({"decision": COMPUTING}, Path.DECLINED),
        ({"decision": COMPUTING, "arm": Arm.HOLDOUT}, Path.DECLINED),
        ({"decision": LOADING, "loads": (run(2, 1),), "fallback": Outcome.LATE}, Path.FALLBACK),
    ],
)
def test_the_path_of_a_request(given: dict[str, Any], path: Path) -> None:
    assert path_of(account(**given), TIERS) is path


def heard(**given: Any) -> dict[str, Any]:
    metrics = Heard()
    record_account(metrics, account(**given), TIERS)
    return metrics.calls


def test_the_ledger_is_booked() -> None:
    assert heard()["booked"] == ({Outcome.NEVER_PUBLISHED: 96, Outcome.PARTIAL_BLOCK: 4},)


def test_a_decision_is_counted_with_its_reason_and_arm() -> None:
    assert heard(decision=LOADING)["decided"] == ("load", "pays", "on")


def test_a_request_without_a_lookup_counts_no_decision() -> None:
    assert "decided" not in heard(arm=Arm.OFF)


def test_lost_seconds_go_to_the_choice_that_lost_them() -> None:
    assert heard(decision=COMPUTING, lost_seconds=0.25)["lost"] == ("recompute", 0.25)


def test_a_right_choice_loses_nothing() -> None:
    assert "lost" not in heard(decision=LOADING)


def test_a_load_saves_what_it_was_faster_by() -> None:
    assert heard(decision=LOADING, loads=(run(2, 3),), load_seconds=0.5)["saved"] == (1.5,)


def test_a_slower_load_saves_nothing() -> None:
    assert heard(decision=LOADING, loads=(run(2, 3),), load_seconds=5.0)["saved"] == (0.0,)


def test_a_load_that_fell_back_saves_nothing() -> None:
    assert "saved" not in heard(decision=LOADING, load_seconds=0.5, fallback=Outcome.FAILED)


def test_a_fallback_is_counted_by_cause() -> None:
    assert heard(decision=LOADING, fallback=Outcome.CORRUPT)["fell_back"] == ("corrupt",)


def test_the_time_to_a_ready_prompt_is_observed() -> None:
    assert heard()["ready"] == ("cold", 2.5)


def test_an_aborted_request_never_became_ready() -> None:
    assert "ready" not in heard(aborted=True, ready_seconds=None)


@pytest.mark.parametrize(
    ("operation", "statuses", "calls"),
    [
        ("find", bytes([Found.HELD, Found.GHOST, Found.ALIEN]), {"probed": ("pool", 0.5, 3, 1)}),
        ("find", b"", {"probed": ("pool", 0.5, 3, 0)}),
        ("get", bytes([Got.OK, Got.OK, Got.LATE]), {"loaded": ("pool", 0.5, 2000)}),
        ("put", b"\0\0\0", {"stored": ("pool", 0.5, 2000)}),
        (
            "put",
            bytes([Put.STORED, Put.FULL, Put.FULL]),
            {"stored": ("pool", 0.5, 2000), "refused": ("pool", 2)},
        ),
        ("drop", b"", {}),
    ],
)
def test_what_a_measured_tier_reports(operation: str, statuses: bytes, calls: dict[str, Any]) -> None:
    metrics = Heard()
    observer(metrics, Kind.POOL)(operation, 3, 2000, 0.5, 1.0, statuses)
    assert metrics.calls == calls


def test_evicted_blocks_that_nobody_read_are_counted_and_told() -> None:
    metrics, told = Heard(), []
    mourner(metrics, told.append, Kind.DISK)([b"a", b"b", b"c"], b"\0\1\0", 5000)
    assert metrics.calls == {"never_read": ("disk", 5000)}
    assert told == [Evicted([b"a", b"b", b"c"], b"\0\1\0")]


def test_evicted_blocks_that_were_read_are_told_only() -> None:
    metrics, told = Heard(), []
    mourner(metrics, told.append, Kind.HOST)([b"a"], b"\1", 0)
    assert metrics.calls == {}
    assert told == [Evicted([b"a"], b"\1")]
