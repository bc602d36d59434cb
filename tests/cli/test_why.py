from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvferry.cli.main import main
from kvferry.cli.why import REASONS
from kvferry.config import load
from kvferry.gate.facts import Arm, Decision, Facts, GateTerms, Live, Reason, Segment
from kvferry.outcomes import Outcome
from kvferry.runs import RunDirectory
from kvferry.runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord, LoadRecord

LIVE = Live(
    prefill_step_seconds=0.01,
    prefill_token_seconds=0.004,
    prefill_pair_seconds=0.0,
    prefill_median=1.0,
    prefill_observations=9,
    chunk_tokens=256,
)
FACTS = Facts(
    prompt_tokens=100,
    local_tokens=32,
    block_tokens=32,
    bytes_per_token=1024,
    segments=(),
    live=LIVE,
    arm=Arm.ON,
)
LOADED = DecisionRecord(
    version=SCHEMA_VERSION,
    request_id="cmpl-loaded",
    replica="B",
    arrival=0.0,
    tenant_class="default",
    mode="on",
    path="pool_hit",
    prompt_tokens=100,
    block_tokens=32,
    bytes_per_token=1024,
    found_end_block=3,
    facts=FACTS,
    terms=GateTerms(),
    decision=Decision(
        end_block=3,
        reason=Reason.PAYS,
        load_median_seconds=0.1,
        load_high_seconds=0.2,
        recompute_seconds=0.5,
        margin_seconds=0.025,
        candidate_end_block=3,
        candidate_bytes=65536,
    ),
    ledger={Outcome.DEVICE_HIT: 32, Outcome.POOL_HIT: 64, Outcome.PARTIAL_BLOCK: 4},
    loads=(
        LoadRecord(
            tier="pool",
            start_block=1,
            stop_block=3,
            good_blocks=2,
            bytes=65536,
            wire_seconds=0.125,
            install_seconds=0.001,
        ),
    ),
    actual=Actual(lookup_seconds=0.002, load_seconds=0.15, computed_tokens=4, ttft_seconds=0.3),
    decision_id="gateway-7",
)
DECLINED = msgspec.structs.replace(
    LOADED,
    request_id="cmpl-declined",
    path="declined",
    decision=msgspec.structs.replace(LOADED.decision, end_block=1, reason=Reason.SLOWER),  # type: ignore[type-var]
    ledger={Outcome.DEVICE_HIT: 32, Outcome.DECLINED: 64, Outcome.PARTIAL_BLOCK: 4},
    loads=(),
    actual=Actual(recompute_seconds=0.6, computed_tokens=68),
    lost_seconds=0.5,
    decision_id="",
)
ABORTED = msgspec.structs.replace(
    LOADED,
    request_id="other",
    facts=None,
    decision=None,
    ledger={Outcome.ABORTED: 100},
    loads=(),
    actual=Actual(),
    aborted=True,
    decision_id="",
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    loaded = load(env={})
    with RunDirectory.create(tmp_path, command=[], config=loaded.config, origins=loaded.origins) as run:
        for record in (LOADED, DECLINED, ABORTED):
            run.append_decision(record)
    return str(tmp_path)


def story(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["why", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "told",
    [
        "cmpl-loaded on B, 1970-01-01 00:00:00 UTC, mode on: pool_hit",
        "prompt 100 tokens: 3 blocks of 32, a tail of 4",
        "on offer 64 tokens (64 KiB) beyond 32 held locally",
        "load predicted 100 ms, at most 200 ms in 95% of cases",
        "recompute predicted 500 ms; the load has to win by 25 ms",
        "decision load up to block 3: loading is clearly faster (pays)",
        "leg pool: blocks 1-2, 2 usable, 64 KiB: queue 0 s, wire 125 ms (512 KiB/s, 1 in flight)",
        "actual lookup 2 ms, load 150 ms, prefill 0 s for 4 tokens, first token after 300 ms",
        "otherwise recomputing was predicted to take 500 ms; this took 150 ms: 350 ms saved",
        "ledger device_hit 32 + pool_hit 64 + partial_block 4 = 100 tokens",
    ],
)
def test_a_load_is_told(capsys: pytest.CaptureFixture[str], folder: str, told: str) -> None:
    assert told in story(capsys, folder, "cmpl-loaded")


def test_a_wrong_decline_says_what_was_lost(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    told = story(capsys, folder, "cmpl-declined")
    assert "decision recompute: loading is not clearly faster (slower)" in told
    assert "loading was predicted to take 100 ms; this took 600 ms: 500 ms lost" in told


def test_an_aborted_request_is_told(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    told = story(capsys, folder, "other")
    assert "decision none" in told
    assert "end aborted" in told


@pytest.mark.parametrize("request_id", ["cmpl-l", "gateway-7"])
def test_a_request_is_found_by_its_beginning_or_its_decision(
    capsys: pytest.CaptureFixture[str], folder: str, request_id: str
) -> None:
    assert story(capsys, folder, request_id).startswith("cmpl-loaded on B")


def test_json_is_the_record(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    assert main(["why", folder, "cmpl-loaded", "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert msgspec.convert(shown, DecisionRecord) == LOADED


@pytest.mark.parametrize(
    ("request_id", "message"),
    [
        ("cmpl-", "2 requests begin with 'cmpl-'"),
        ("cmpl-loadet", "such as cmpl-loaded"),
        ("zzz", "there are 3"),
    ],
)
def test_a_request_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], folder: str, request_id: str, message: str
) -> None:
    assert main(["why", folder, request_id]) == 2
    assert message in capsys.readouterr().err


def test_a_record_that_does_not_parse_is_left_out_and_named_by_line(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    with (Path(folder) / "decisions.jsonl").open("a") as file:
        file.write("{}\n")
    assert main(["why", folder, "other"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("other on B")
    assert "1 line left out, the first: " in captured.err
    assert "decisions.jsonl:4" in captured.err


def test_records_of_which_none_parses_are_an_error(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    (Path(folder) / "decisions.jsonl").write_text("{}\n")
    assert main(["why", folder]) == 2
    assert "decisions.jsonl:1" in capsys.readouterr().err


def test_without_a_request_they_are_listed_the_most_lost_first(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    told = story(capsys, folder)
    assert told.startswith(f"3 requests in {folder}: 1 pool hit, 1 declined, 1 aborted")
    assert told.index("cmpl-declined") < told.index("cmpl-loaded")
    assert told.endswith(f"kvferry why {folder} cmpl-declined tells its story")


def test_a_long_list_is_cut_and_counted(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    line = (Path(folder) / "decisions.jsonl").read_text().splitlines(keepends=True)[0]
    (Path(folder) / "decisions.jsonl").write_text(line * 100)
    assert main(["why", folder]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 16
    assert "... and 88 more" in shown[-2]


def test_one_request_is_no_plural(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    line = (Path(folder) / "decisions.jsonl").read_text().splitlines(keepends=True)[0]
    (Path(folder) / "decisions.jsonl").write_text(line)
    assert story(capsys, folder).startswith("1 request in ")


def test_the_list_for_machines_is_every_record(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    assert main(["why", folder, "--json"]) == 0
    assert len(msgspec.json.decode(capsys.readouterr().out, type=list[DecisionRecord])) == 3


@pytest.mark.parametrize("words", [[], ["x"]])
def test_a_folder_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    assert main(["why", str(tmp_path / "nodir"), *words]) == 2
    assert "nodir: there is no such folder" in capsys.readouterr().err


def test_a_run_without_requests_is_told(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    (Path(folder) / "decisions.jsonl").unlink()
    assert main(["why", folder]) == 2
    assert "records no request yet" in capsys.readouterr().err


def with_facts(folder: str, **changes: Any) -> None:
    facts = msgspec.structs.replace(FACTS, lookup_seconds=0.002, **changes)
    (Path(folder) / "decisions.jsonl").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(LOADED, facts=facts)) + b"\n"
    )


def a_segment(observations: int) -> Segment:
    return Segment(
        tier=0,
        stop_block=3,
        setup_seconds=0.0,
        seconds_per_byte=0.0,
        spread_median=1.0,
        spread_high=1.0,
        in_flight=0,
        observations=observations,
    )


def test_a_tier_that_was_never_read_is_unknown(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    with_facts(folder, segments=(a_segment(0),))
    told = story(capsys, folder, "cmpl-loaded")
    assert "load unknown: nothing was read from there before; look-up 2 ms" in told


def test_a_tier_that_was_read_is_predicted(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    with_facts(folder, segments=(a_segment(1),))
    assert "load predicted 100 ms" in story(capsys, folder, "cmpl-loaded")


def test_a_prefill_that_was_never_seen_is_unknown(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    with_facts(folder, live=msgspec.structs.replace(LIVE, prefill_observations=0))
    told = story(capsys, folder, "cmpl-loaded")
    assert "recompute unknown: nothing was computed here before" in told
    assert "otherwise what recomputing would have taken is unknown" in told


def test_every_reason_has_words() -> None:
    assert set(Reason) == set(REASONS)
